"""How the shipped weights were made: run from a checkout with the traces at hand, never by the product."""

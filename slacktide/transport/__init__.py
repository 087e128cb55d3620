"""How our programs reach each other safely: TLS that follows its files, and who a caller is.

`files`    certificates and tokens in files that are replaced while we run
`expiry`   until when certificates are good
`watched`  the same as a metric, which those without metrics do not import
`server`   a gRPC server's credentials, and where plaintext may be served
`client`   channels to a server of ours, with the token of the moment
`reviews`  the API server's word on a token and on a right
`tokens`   the same, remembered until it must be asked for again
"""

from slacktide.transport.client import ClientFiles, Connection, connection_to, secure_connection
from slacktide.transport.files import CertificateFiles, Pems, TransportError, read_token
from slacktide.transport.reviews import Review, User, may, review_token
from slacktide.transport.server import (
    TlsSettings,
    certificate_names,
    check_plaintext,
    common_name,
    over_tls,
    server_credentials,
    tls_files,
)
from slacktide.transport.tokens import Identity, NotNow, Rejected, Tokens, bearer

__all__ = [
    "CertificateFiles",
    "ClientFiles",
    "Connection",
    "Identity",
    "NotNow",
    "Pems",
    "Rejected",
    "Review",
    "TlsSettings",
    "Tokens",
    "TransportError",
    "User",
    "bearer",
    "certificate_names",
    "check_plaintext",
    "common_name",
    "connection_to",
    "may",
    "over_tls",
    "read_token",
    "review_token",
    "secure_connection",
    "server_credentials",
    "tls_files",
]

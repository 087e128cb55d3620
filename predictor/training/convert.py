"""From LightGBM's boosters to the trees that the product evaluates in numpy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import lightgbm
import numpy as np

from predictor.models.trees import MOST_LEAVES, Trees


@dataclasses.dataclass(slots=True)
class _Tree:
    splits: list[tuple[int, np.float32, bool, int]] = dataclasses.field(default_factory=list)
    leaves: list[float] = dataclasses.field(default_factory=list)


def trees_of(booster: lightgbm.Booster, start: float = 0.0) -> Trees:
    """The booster's raw score as Trees. Raises ValueError for a tree with more leaves than Trees can hold."""
    trees = [_tree(info["tree_structure"]) for info in booster.dump_model()["tree_info"]]
    splits = [split for tree in trees for split in tree.splits]
    value = np.zeros((len(trees), MOST_LEAVES), dtype=np.float32)
    for row, tree in zip(value, trees, strict=True):
        if len(tree.leaves) > MOST_LEAVES:
            raise ValueError(f"a tree has {len(tree.leaves)} leaves, fit with num_leaves <= {MOST_LEAVES}")
        row[: len(tree.leaves)] = tree.leaves
    return Trees(
        feature=np.array([split[0] for split in splits], dtype=np.int16),
        threshold=np.array([split[1] for split in splits], dtype=np.float32),
        nan_left=np.array([split[2] for split in splits], dtype=np.bool_),
        left=np.array([split[3] for split in splits], dtype=np.uint32),
        first=np.concatenate([[0], np.cumsum([len(tree.splits) for tree in trees])]).astype(np.int32),
        value=value,
        start=start,
    )


def _tree(root: Mapping[str, Any]) -> _Tree:
    tree = _Tree()

    def walk(node: Mapping[str, Any]) -> int:
        """Bits of the leaves below `node`."""
        if "leaf_value" in node:
            tree.leaves.append(float(node["leaf_value"]))
            return 1 << (len(tree.leaves) - 1)
        place = len(tree.splits)
        threshold = _floored(float(node["threshold"]))
        # A feature that was never unknown while fitting counts as 0 when it is.
        unknown_left = bool(node["default_left"]) if node["missing_type"] == "NaN" else bool(threshold >= 0)
        tree.splits.append((int(node["split_feature"]), threshold, unknown_left, 0))
        left = walk(node["left_child"])
        right = walk(node["right_child"])
        tree.splits[place] = (*tree.splits[place][:3], left)
        return left | right

    walk(root)
    return tree


def _floored(threshold: float) -> np.float32:
    """The largest float32 up to `threshold`: float32 values go the same way at both."""
    near = np.float32(min(threshold, float(np.finfo(np.float32).max)))
    return near if float(near) <= threshold else np.nextafter(near, np.float32(-np.inf))

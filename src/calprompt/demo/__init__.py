"""The demonstration: zero-shot CLIP, CoOp, and CoOp with TCPT, compared on the package's own model and pictures."""

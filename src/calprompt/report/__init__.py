"""Reports on runs, as tables and figures.

reliability   reliability diagrams
comparison    methods side by side, with intervals over images and seeds
demo          zero-shot, CoOp and CoOp + TCPT on the package's own model and pictures
"""

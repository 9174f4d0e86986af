"""Reports on runs, as tables, figures and pages.

reliability   reliability diagrams
comparison    methods side by side, with intervals over images and seeds
paired        methods on many datasets, with intervals over datasets; paired_tables and paired_figures show them
page          everything on one HTML page; check: whether such a page is true
demo          zero-shot, CoOp and CoOp + TCPT on the package's own model and pictures
"""

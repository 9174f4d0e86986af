"""Reports on results, as tables, figures and pages.

reliability   reliability diagrams
tables        the paper's tables; published: what the paper printed
figures       figures by name
page          everything on one HTML page; check: whether such a page is true
"""

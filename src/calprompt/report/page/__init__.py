"""The report page: one HTML file of tables, figures and mistakes, with the data that it was made from inside.

document      what a report says, as plain data           build       a document from runs and tables of results
render        the document as HTML                        reading     the document, and what is shown, from HTML
check         whether a page is true: it is made again and compared
"""

"""The page of a run, report.html, and the view of responses token by token, for every stage.

Text of a model or of data never becomes markup: the templates escape all of it.
"""

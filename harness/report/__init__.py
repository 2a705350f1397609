"""The page of a run, report.html, and the view of responses token by token, for every stage.

One file that needs no server and no network. Text of a model or of data never becomes markup: the
templates escape all of it, and the scripts set text only. Nothing here draws a random number.
"""

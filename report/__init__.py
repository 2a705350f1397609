"""Readers of a run folder: its page, the doctor, tables over seeds, responses token by token.

Text of a model or of data never becomes markup: the templates escape all of it.
"""

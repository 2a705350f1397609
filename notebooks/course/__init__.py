"""What the pages share: how things look, exercises that check themselves, and kept small models.

README.md beside this file says how a page uses them.
"""

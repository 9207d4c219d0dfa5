"""Guards: what a message or a call stands for is done once, however often it comes.

:mod:`verdict` is what they say, :mod:`guard` how one stands in front of a function. The guards:
:mod:`unique_key` in the function's own database transaction, :mod:`redis` beside it, :mod:`version`
in the row that is changed, :mod:`token` for calls that are no messages.
"""

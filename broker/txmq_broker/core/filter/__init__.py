"""Filters of subscriptions: by tags, or by an SQL92 condition on properties. Pure.

:mod:`tokens` cuts an expression into tokens, :mod:`parser` builds a tree of :mod:`syntax`, and
:mod:`condition` compiles the tree to functions. :mod:`values` converts texts to numbers as Java
does. Every accepted expression has the same meaning in Apache RocketMQ. :mod:`filters` caches
compiled conditions.
"""

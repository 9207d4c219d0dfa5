"""Which messages a subscription wants: by tags, or by a condition on properties in SQL92. Pure.

An expression is cut into words (:mod:`tokens`), read into a tree (:mod:`parser`, :mod:`syntax`) and
made into functions (:mod:`condition`); how texts become numbers is Java's business (:mod:`values`).
Whatever is accepted here means in Apache RocketMQ the same. :mod:`filters` keeps what was read.
"""

"""A bank that takes transfers over HTTP, with FastAPI, Flask and Django.

What the three have in common stands in :mod:`.bank`. The pages show them in
``docs/howto/web-frameworks.md``, and ``tests/integration/test_web_recipes.py`` drives them.
"""

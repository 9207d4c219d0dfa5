"""Reads a command line as `txmq` reads it."""

import typer

from txmq.cli.root import app


def options_of(words):
    """The options of a command of txmq, without those of the groups above it; wrong ones raise."""
    found = typer.main.get_command(app)
    context = found.make_context("txmq", list(words))
    # A group can be a command itself, with options of its own before the next word.
    while hasattr(found, "resolve_command") and (rest := rest_of(context)):
        name, found, words = found.resolve_command(context, rest)
        context = found.make_context(name, list(words), parent=context)
    return context.params


def rest_of(context):
    return [*context._protected_args, *context.args]


def unknown_words(words):
    """What is not a command or an option of txmq; a mention of a command may lack arguments."""
    found, rest = typer.main.get_command(app), list(words)
    while rest and hasattr(found, "get_command") and (inner := found.get_command(None, rest[0])):
        found, rest = inner, rest[1:]
    known = {name for option in found.params for name in (*option.opts, *option.secondary_opts)}
    takes_words = getattr(found, "invoke_without_command", True)
    return [word for word in rest if not takes_words or (word[0] == "-" and word not in known)]

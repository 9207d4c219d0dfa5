"""Runs tests that are coroutines: each names what runs it, such as a world of virtual time."""

import asyncio
from inspect import Parameter, Signature, signature

__all__ = ["in_loop", "on_stage_of", "run_by"]


def in_loop(main):
    """Run a coroutine function in an event loop of its own, in real time."""
    return asyncio.run(main())


def on_stage_of(make):
    """Runs tests on a stage that ``make`` makes, with what each test chooses for it."""

    def run(test, *chosen, **settings):
        async def story():
            async with make(*chosen, **settings) as stage:
                await test(stage)

        asyncio.run(story())

    return run


def run_by(runner, *arguments, **options):
    """A test that is a coroutine, which `runner(test, *arguments, **options)` runs.

    The test's positional-only parameters come from the runner, the others from pytest. A runner
    that is a fixture is given by its name.
    """

    def decorate(test):
        named = [
            parameter.replace(kind=Parameter.KEYWORD_ONLY)
            for parameter in signature(test).parameters.values()
            if parameter.kind is not Parameter.POSITIONAL_ONLY
        ]
        if isinstance(runner, str):
            named.append(Parameter(runner, Parameter.KEYWORD_ONLY))

        def call(**values):
            run = values.pop(runner) if isinstance(runner, str) else runner

            async def main(*given):
                await test(*given, **values)

            main.__name__, main.__qualname__ = test.__name__, test.__qualname__
            run(main, *arguments, **options)

        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            setattr(call, name, getattr(test, name))
        call.__signature__ = Signature(named)
        return call

    return decorate

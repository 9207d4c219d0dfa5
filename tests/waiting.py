"""What tests wait for, and for how long at most."""

import asyncio


def run(scenario):
    """Run an async test, which must end within 20 seconds."""

    async def bounded():
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(bounded())


async def until(holds):
    """Wait at most 10 seconds for a condition."""
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.005)

"""Leaders and followers in virtual time: who follows whom, and what a promoted one has."""

from tests.unit.set_stage import in_set


async def fill(client, first=0, count=20, topic="T", size=2000):
    for number in range(first, first + count):
        await client.send(topic, b"%d " % number + b"." * size, queue=number % 4)


async def bodies(client, topic="T"):
    """The numbers of all messages of a topic, by queue."""
    found = []
    for queue in range(4):
        offset = 0
        while (pulled := await client.pull(topic, offset, queue=queue)).records:
            found += [int(body.split()[0]) for body in pulled.bodies]
            offset = pulled.next
    return sorted(found)


def test_one_process_may_follow_and_lead_and_follow_the_same_directory():
    async def main(stage):
        await stage.first.lead(epoch=1)
        stage.second.follow()
        client = await stage.first.client()
        await client.topic("T", 4)
        await fill(client, 0, 100)
        await stage.caught_up(stage.second)
        assert len(stage.first.log_files()) > 2
        assert stage.second.log_files() == stage.first.log_files()

        for epoch in (2, 3, 4):
            leader, follower = stage.first, stage.second
            await follower.stop()
            await leader.kill()
            await follower.lead(epoch)
            leader.follow()
            client = await follower.client()
            await fill(client, 100 * epoch, 50)
            await stage.caught_up(leader)
            assert leader.log_files() == follower.log_files()
            stage.first, stage.second = follower, leader
        expected = [*range(100), *range(200, 250), *range(300, 350), *range(400, 450)]
        assert await bodies(client) == expected

    in_set(main)

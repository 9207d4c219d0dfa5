"""What a connection costs that does nothing."""

import bench_driver
import bench_frames


def idle(bench, plan):
    """Memory of connections: merely open, and after the heartbeat an idle producer sends."""
    count = plan.connections
    with bench.broker() as broker:
        before = broker.rss_mb()
        links = [Idle(broker.port) for _ in range(count)]
        # An answer to the last one says that all before it were accepted too.
        links[-1].beat(count)
        opened = broker.rss_mb()
        for number, link in enumerate(links):
            link.beat(number)
        beaten = broker.rss_mb()
        for link in links:
            link.close()
    return {
        "connections": count,
        "rss_mb_before": before,
        "mb_per_1000_open": round((opened - before) / count * 1000, 2),
        "mb_per_1000_with_heartbeat": round((beaten - before) / count * 1000, 2),
    }


class Idle(bench_driver.Link):
    """A connection with a small buffer of its own: thousands of them are open here too."""

    BUFFER_BYTES = 4096

    def beat(self, number):
        """Send a heartbeat and wait for its answer."""
        self.send(bench_frames.heartbeat(number))
        while not self.answers():
            pass

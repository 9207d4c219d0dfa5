"""Reads the metrics of a broker, with the parser of Prometheus' own client library."""

from prometheus_client.parser import text_string_to_metric_families

from txmq_broker.monitoring.metric_table import PREFIX
from txmq_broker.monitoring.pages import MonitoringPages
from txmq_broker.monitoring.subject import LoneProcess

__all__ = ["Scrape", "of_broker", "scraped"]


class Scrape:
    """The samples of one page."""

    def __init__(self, text):
        self.families = {metric.name: metric for metric in text_string_to_metric_families(text)}
        self._values = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name, **labels):
        """The value of a sample; ``None`` if it does not exist."""
        return self._values.get((PREFIX + name, *sorted(labels.items())))

    def labelled(self, name, label):
        """The values of a metric by one label."""
        return {
            dict(labels)[label]: value
            for (sample, *labels), value in self._values.items()
            if sample == PREFIX + name
        }

    def histogram(self, name):
        """The number and the sum of durations; the buckets must be cumulative."""
        buckets = list(self.labelled(f"{name}_bucket", "le").values())
        assert buckets == sorted(buckets)
        assert buckets[-1] == self(f"{name}_count")
        return self(f"{name}_count"), self(f"{name}_sum")


def of_broker(broker):
    """The pages about a broker that runs."""
    return MonitoringPages(broker.settings, LoneProcess(broker=broker))


async def scraped(broker):
    """The metrics of a broker now."""
    return Scrape((await of_broker(broker).metrics()).text)

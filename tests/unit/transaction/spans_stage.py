"""The spans of transactions in OpenTelemetry."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from txmq.client.observe.telemetry import Telemetry
from txmq.client.settings import ClientSettings

__all__ = ["NINE", "Spans", "below_now"]

NINE = [
    "1 open", "2 send", "3 store", "4 report", "5 run",
    "6 return", "7 receive", "8 decide", "9 confirm",
]  # fmt: skip


class Spans:
    """The finished spans of OpenTelemetry."""

    def __init__(self, topic):
        self.topic = topic
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")
        self.telemetry = Telemetry(self.provider)
        self.settings = ClientSettings(telemetry=self.telemetry)

    def __call__(self, name):
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name):
        (found,) = self(name)
        return found

    @property
    def whole(self):
        return self.one(f"transaction {self.topic}")

    def below(self, parent):
        found = [
            span
            for span in self.exporter.get_finished_spans()
            if span.parent is not None and span.parent.span_id == parent.context.span_id
        ]
        return sorted(found, key=lambda span: span.start_time)

    def names(self, parent):
        return [span.name for span in self.below(parent)]


def below_now(spans, word="work"):
    """Open a span of the user where it is called."""
    with spans.tracer.start_as_current_span(word):
        pass

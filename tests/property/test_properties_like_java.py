"""Properties texts are read as java.util.Properties reads them."""

from pathlib import Path

import py4j
import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from txmq.settings.property_lines import PropertyError, read_properties

# Few characters, all with a meaning, so that most texts combine several rules.
MARKS = st.text(st.sampled_from("ab =:#!\\\t\f\n\r\\\\nué\u4e2d0"), max_size=24)
PIECES = st.lists(
    st.sampled_from(
        [
            "\\", "\\\n", "\\\r\n", "\n", "\r", "\r\n", "#", "!", " ", "\t", "\f", "=", ":", "a",
            "key", "value", "\\u00e9", "\\u4E2D", "\\=", "\\:", "\\ ", "\\#",
            "\\\\", "\\t", "\\q", "\u4e2d", "\\u12", "brokerName=broker-a\n",
        ]
    ),
    max_size=12,
).map("".join)  # fmt: skip


@pytest.fixture(scope="module")
def java():
    """A Java with nothing but its own library; py4j, which comes with Spark, talks to it."""
    (jar,) = Path(py4j.__file__).parents[1].glob("pyspark/jars/py4j-*.jar")
    port = launch_gateway(jarpath=str(jar), java_path=None, die_on_exit=True)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    yield gateway.jvm
    gateway.shutdown()


def theirs(java, text):
    found = java.java.util.Properties()
    try:
        found.load(java.java.io.StringReader(text))
    except Py4JJavaError:
        return "error"
    return {name: found.getProperty(name) for name in found.stringPropertyNames()}


def ours(text):
    try:
        return {entry.name: entry.value for entry in read_properties(text)}
    except PropertyError:
        return "error"


@given(text=MARKS | PIECES)
def test_properties_files_are_read_as_java_reads_them(java, text):
    if text.rstrip().endswith("\\"):
        text += "end"  # To Java a lone backslash at the very end is an entry without a name.

    assert ours(text) == theirs(java, text)

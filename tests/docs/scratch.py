"""The environment of one page: a directory, a broker, databases and a Redis of its own."""

import contextlib
import re
from functools import cached_property

import psycopg
from sqlalchemy import create_engine

from tests.servers.databases import conninfo
from txmq.idempotent.unique_key import create_done
from txmq.outbox.table import create_outbox
from txmq.transaction.resources.schema import create_fence
from txmq_broker.config import BrokerSettings, FilterSettings, StoreSettings
from txmq_broker.testing import BrokerThread

NAMES = "127.0.0.1:9876"
REDIS = "redis://127.0.0.1:6379/0"
DATABASE = re.compile(r"(postgresql(?:\+psycopg)?)://(?:bank@127\.0\.0\.1)?/(\w+)")
VARIABLE = re.compile(r"\$(\w+)")


class Scratch:
    """What the programs and commands of a page work on; nothing of it outlives the page.

    A page names addresses and databases as its reader has them. ``real`` puts those of this
    environment in their place, and ``run`` does the reverse with what was printed.
    """

    def __init__(self, page, server, folder, fixture):
        self.folder = folder
        self.variables = {"HOME": str(folder)}
        self._server = server
        self._creates_tables = "txmq schema create" in page.text
        self._creates_databases = "$ createdb " in page.text
        self._fixture = fixture
        self._stack = contextlib.ExitStack()
        self._databases = {}
        self._originals = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._stack.close()

    @cached_property
    def broker(self):
        """A broker that takes every filter that a page shows."""
        store, filters = StoreSettings(flush="async"), FilterSettings(sql=True)
        broker = BrokerThread(BrokerSettings(store=store, filter=filters))
        return self._stack.enter_context(broker)

    def database(self, name, *, is_created=False):
        """The URL of the PostgreSQL database that the page calls by this name.

        It exists, and has the tables of txmq, unless the page says how to create them.
        """
        if name not in self._databases:
            assert is_created or not self._creates_databases, f"the page does not create {name}"
            self._databases[name] = self.new_database()
            if not self._creates_tables:
                create_tables(self._databases[name])
        return self._databases[name]

    def any_database(self):
        """The URL of a database that the page has used, or of one for statements of their own."""
        return next(iter(self._databases.values()), None) or self.database("postgres")

    def new_database(self):
        """The URL of an empty PostgreSQL database."""
        return self._stack.enter_context(self._fixture("postgres").database())

    def real(self, text):
        """This text with the addresses of the environment."""
        text = VARIABLE.sub(lambda match: self.variables.get(match[1], match[0]), text)
        if NAMES in text:
            self._originals[self.broker.names] = NAMES
            text = text.replace(NAMES, self.broker.names)
        if REDIS in text:
            text = text.replace(REDIS, self._fixture("redis_server").url)
        return DATABASE.sub(self._real_database, text)

    def _real_database(self, match):
        url = self.database(match[2])
        for driver in (match[1], "postgresql+psycopg"):  # Commands name the driver they choose.
            real = url.set(drivername=driver).render_as_string(False)
            self._originals[real] = match[0].replace(match[1], driver, 1)
        return url.set(drivername=match[1]).render_as_string(False)

    def run(self, words, lines=None):
        """Run a program or a command in the directory; see :class:`ProgramServer`."""
        variables = dict(self.variables)
        if words[0] == "txmq":
            variables.setdefault("TXMQ_NAMES", self.broker.names)
        result = self._server.run(words, self.folder, variables, lines)
        output, errors = self._shown(result.output), self._shown(result.errors)
        return result._replace(output=output, errors=errors)

    def _shown(self, text):
        for real, original in self._originals.items():
            text = text.replace(real, original)
        return text


def execute(url, statements):
    """Run this SQL in a PostgreSQL database."""
    with psycopg.connect(conninfo(url), autocommit=True) as connection:
        connection.execute(statements)


def create_tables(url):
    """Create the tables that a page takes for granted."""
    engine = create_engine(url)
    create_fence(engine)
    create_done(engine)
    create_outbox(engine)
    engine.dispose()

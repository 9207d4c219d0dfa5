"""Owns the jars with which Spark reaches an object store: Hadoop's connector, and Amazon's library.

PyPI has them only within the source of a package for SageMaker. They are of Hadoop 3.3.1, and
Spark's Hadoop is newer: some of its default settings have units, which this connector does not
read, and one names a class of a newer library.
"""

import shutil
import tarfile

from tests.packages import Unprepared, cache, locked, pip_source

PACKAGE, VERSION = "sagemaker_pyspark", "1.4.5"
NAMES = ("hadoop-aws-3.3.1.jar", "aws-java-sdk-bundle-1.11.901.jar")
SETTINGS = {
    "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "connection.establish.timeout": "5000",
    "connection.timeout": "20000",
    "connection.ttl": "300000",
    "multipart.purge.age": "86400",
    "threads.keepalivetime": "60",
}
"""Settings of ``fs.s3a`` with which a Spark of a newer Hadoop takes this connector."""


def jars():
    """The paths of the jars.

    Raises:
        Unprepared: They cannot be fetched.
    """
    home = cache("s3a")
    found = [home / name for name in NAMES]
    if not all(path.exists() for path in found):
        source = pip_source("s3a", PACKAGE, VERSION)
        with locked(home):
            _unpack(source, found)
    return found


def _unpack(source, wanted):
    with tarfile.open(source) as archive:
        for path in wanted:
            draft = path.with_suffix(".writing")
            try:
                packed = archive.extractfile(f"{PACKAGE}-{VERSION}/deps/jars/{path.name}")
            except KeyError as error:
                raise Unprepared(f"{source.name} has no {path.name}") from error
            with draft.open("wb") as target:
                shutil.copyfileobj(packed, target)
            draft.replace(path)
    source.unlink()  # It is as large as they are.

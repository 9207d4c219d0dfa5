# txmq with its examples, as `make` sets it up; for docker-compose.yml.
FROM python:3.11-slim
WORKDIR /txmq
COPY constraints.txt ./
RUN pip install --no-cache-dir --disable-pip-version-check --require-hashes -r constraints.txt
COPY pyproject.toml README.md LICENSE ./
COPY txmq ./txmq
COPY broker ./broker
COPY examples ./examples
RUN pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation -e .
# A volume that is mounted there for the first time belongs to whom the directory belongs to.
RUN useradd --system txmq && install --directory --owner txmq /data
USER txmq
ENV PYTHONUNBUFFERED=1
CMD ["txmq", "serve", "--data", "/data"]

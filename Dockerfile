# The broker, from the wheel that `make wheels` has put into dist:
#
#   docker build --tag txmq .
#   docker run --volume txmq:/data --network host txmq
#
# By default it listens on loopback. Before you let it listen elsewhere, give it accounts:
# docs/howto/secure.md.
# The stage `banks` is the image of docker-compose.yml, with the examples.

FROM python:3.11-slim AS banks
WORKDIR /txmq
COPY examples/constraints.txt ./
RUN pip install --no-cache-dir --disable-pip-version-check --require-hashes -r constraints.txt
COPY pyproject.toml README.md LICENSE ./
COPY tools/release/project_page.py ./tools/release/project_page.py
COPY txmq ./txmq
COPY broker ./broker
COPY examples ./examples
RUN pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation -e .
# A volume that is mounted there for the first time belongs to whom the directory belongs to.
RUN useradd --system --uid 10001 txmq && install --directory --owner txmq /data \
 && install --owner txmq --mode 600 examples/bank_transfer/broker_accounts.yml /etc/txmq-accounts.yml
USER 10001
ENV PYTHONUNBUFFERED=1
CMD ["txmq", "serve", "--data", "/data"]

FROM python:3.13-slim AS installed
COPY packaging/docker/constraints.txt /build/
COPY dist/*.whl /build/
# The environment has no pip of its own.
RUN python -m venv --without-pip /opt/txmq \
 && pip --python /opt/txmq/bin/python install --no-cache-dir --require-hashes -r /build/constraints.txt \
 && pip --python /opt/txmq/bin/python install --no-cache-dir --no-deps /build/*.whl

FROM python:3.13-slim
COPY --from=installed /opt/txmq /opt/txmq
RUN useradd --system --uid 10001 txmq && install --directory --owner txmq /data
USER 10001
ENV PATH=/opt/txmq/bin:$PATH PYTHONUNBUFFERED=1
VOLUME /data
EXPOSE 10911 9876
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["txmq", "cluster", "list"]
CMD ["txmq", "serve", "--data", "/data"]

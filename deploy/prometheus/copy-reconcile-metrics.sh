#!/bin/sh
# Copies the metrics of the newest business date into the textfile collector of Prometheus' node
# exporter. Run it after each reconciliation, also after one that failed: the alert on the age of the
# metrics then notices the missing night.
#
#   copy-reconcile-metrics.sh /srv/recon /var/lib/node_exporter
set -eu
recon=$1       # directory of the rules
collector=$2   # --collector.textfile.directory of the node exporter
date=$(ls -d "$recon"/runs/*/ | tail -1)
run=$(jq -r .run_id "${date}current")
cp "$date$run/metrics.prom" "$collector/reconcile.prom.new"
# A rename, so that the collector never reads a part of the file.
mv "$collector/reconcile.prom.new" "$collector/reconcile.prom"

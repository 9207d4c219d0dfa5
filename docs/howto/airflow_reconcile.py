"""The nightly reconciliation as a DAG of Airflow 3: copy it into the folder of your DAGs.

Each date waits for the date before, because it continues the open items of that date.
The first task fails if the run failed: Airflow tries it again, and then the operator acts. The
second task fails if there are breaks: another try would not change this, and the controller acts.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

ZONE = "Asia/Shanghai"  # As in the rules.
DATE = f"{{{{ data_interval_start.in_timezone('{ZONE}') | ds }}}}"
RECONCILE = (
    f"txmq reconcile --config /etc/txmq/recon.toml --date {DATE}"
    " --master spark://spark.bank.example:7077 --memory 4g --quiet"
)
TELL = '; code=$?; echo "$code"; test "$code" -le 2 || exit "$code"'
VERDICT = "exit {{ ti.xcom_pull(task_ids='reconcile') }}"

with DAG(
    "txmq_reconcile",
    schedule=CronDataIntervalTimetable("30 2 * * *", timezone=ZONE),
    start_date=pendulum.datetime(2026, 1, 1, tz=ZONE),
    catchup=True,
    max_active_runs=1,
):
    reconcile = BashOperator(
        task_id="reconcile",
        bash_command=RECONCILE + TELL,
        depends_on_past=True,
        retries=3,
        retry_delay=timedelta(minutes=10),
    )
    verdict = BashOperator(task_id="verdict", bash_command=VERDICT, retries=0)
    reconcile >> verdict

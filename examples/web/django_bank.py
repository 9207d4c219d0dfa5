"""The bank with Django and its ORM, in one file: settings, models, a view, and the application."""

from __future__ import annotations

import atexit
import json
import os
from typing import Any

import django
from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.urls import path

# settings.py

settings.configure(
    DATABASES={"default": json.loads(os.environ["BANK_DATABASE"])},
    ROOT_URLCONF=__name__,
    SECRET_KEY="an example",  # noqa: S106
    USE_TZ=True,
)
django.setup()

# models.py

from django.db import IntegrityError, connection, models  # noqa: E402


class Account(models.Model):  # type: ignore[misc]
    """An account and its balance."""

    name = models.CharField(max_length=32, primary_key=True)
    balance = models.BigIntegerField()

    class Meta:
        """Its table."""

        app_label = "bank"
        db_table = "account"

    def __str__(self) -> str:
        return f"{self.name}: {self.balance}"


class Booking(models.Model):  # type: ignore[misc]
    """A transfer in the books."""

    id = models.CharField(max_length=64, primary_key=True)
    xid = models.CharField(max_length=64)
    payer = models.CharField(max_length=32)
    amount = models.BigIntegerField()

    class Meta:
        """Its table."""

        app_label = "bank"
        db_table = "transfer"

    def __str__(self) -> str:
        return f"{self.id}: {self.amount} of {self.payer}"


# transactions.py

from examples.web.bank import (  # noqa: E402
    GROUP,
    UNAVAILABLE,
    Answer,
    Transfer,
    answer_of,
    booked,
    later,
    see_balance,
)
from txmq import SQLResource  # noqa: E402
from txmq.blocking import TransactionManager  # noqa: E402

tm = TransactionManager(GROUP, os.environ["TXMQ_NAMES"], SQLResource(connection))


@tm.transactional(topic="transfer", tags="CCB", keys=lambda order: order.id)
def transfer_out(_: object, order: Transfer) -> None:
    """Debit the payer with the ORM; the writes commit with the message. ``connection`` is the
    session.
    """
    current = tm.current()
    assert current is not None
    Booking.objects.create(id=order.id, xid=current.xid, payer=order.payer, amount=order.amount)
    account = Account.objects.select_for_update().filter(name=order.payer).first()
    left = None if account is None else account.balance - order.amount
    see_balance(order, left)
    Account.objects.filter(name=order.payer).update(balance=left)


# views.py


def find(order: Transfer) -> Answer | None:
    """The answer to a transfer that is in the books already."""
    found = Booking.objects.filter(id=order.id).first()
    return None if found is None else booked(order, found.xid, found.payer, found.amount)


def transfer(request: HttpRequest) -> JsonResponse:
    """With ATOMIC_REQUESTS it would be decorated: ``@transaction.non_atomic_requests``."""
    order = Transfer(**json.loads(request.body))
    answer = find(order)
    if answer is None:
        try:
            answer = answer_of(transfer_out(order))
        except IntegrityError as error:
            # The same request came twice at the same moment, and the other was first.
            answer = find(order) or later(error)
        except UNAVAILABLE as error:
            answer = later(error)
    return JsonResponse(answer.body, status=answer.status)


def health(_: HttpRequest) -> JsonResponse:
    """Answer that the service is ready for requests."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return JsonResponse({"state": "well"})


# urls.py

urlpatterns = [path("transfers", transfer), path("health", health)]

# wsgi.py

from django.core.wsgi import get_wsgi_application  # noqa: E402


def main() -> Any:
    """For ``gunicorn 'examples.web.django_bank:main()'``, which calls it in each worker."""
    tm.start()
    atexit.register(tm.stop)
    return get_wsgi_application()

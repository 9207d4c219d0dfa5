"""Cases for a controller: what happened over three dates, and what each date must say of it.

The steps are explained in :mod:`tests.reconcile.planted_ledgers`. The three texts after them are
the expectations of the three dates, written by hand: the class, and for an item its status, its
amount at risk in minor units, and the side with the money; nothing if the date has no news of an
agreed transfer. ``off`` names what is too much (or too little) in proofs on a date because of the
case, also if an earlier date found it; the sums of ``clearing-total``, ``conservation`` and
``gapless`` add up over all cases.
"""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """A case."""

    key: str
    steps: str
    dates: tuple[str, str, str]
    currency: str = "CNY"
    off: tuple[str, str, str] = ("", "", "")
    is_explained: bool = False
    """True if a person explains it after the first date."""


def case(key, steps, first="", second="", third="", **more):
    return Case(key, steps, (first, second, third), **more)


SENT = "1 order 100 | 1 debit 100"
DONE = f"{SENT} | 1 credit 100"
AT_THE_WRONG_BANK = [
    # Both banks pay, and both have the same account numbers.
    case("back-honest", DONE, "matched"),
    case("back-unclaimed", f"{SENT} | 1 credit 100 account=unclaimed", "matched"),
    case("credit-at-payers", f"{SENT} | 1 credit 100 bank=icbc", "wrong-bank new 100 payee",
         "wrong-bank open 100 payee", "wrong-bank open 100 payee"),
    case("unclaimed-at-payers", f"{SENT} | 1 credit 100 bank=icbc account=unclaimed",
         "wrong-bank new 100 payee", "wrong-bank open 100 payee", "wrong-bank open 100 payee"),
    case("debit-at-payees", "1 order 100 | 1 debit 100 bank=ccb | 1 credit 100",
         "wrong-bank new 100 payee", "wrong-bank open 100 payee", "wrong-bank open 100 payee"),
    case("return-at-payees",
         "1 half 100 | 1 debit 100 | 1 rollback | 1 return 100 bank=ccb",
         "wrong-bank new 100 payer", "wrong-bank open 100 payer", "wrong-bank open 100 payer"),
    case("recall-at-payers", f"{DONE} | 2 recall 100 bank=icbc | 2 return 100", "matched",
         "wrong-bank reopened 100 both", "wrong-bank open 100 both"),
    case("debit-at-payees-by-night", "1e order 100 | 1e debit 100 bank=ccb | 2 credit 100",
         "wrong-bank new 100 transit", "wrong-bank changed 100 payee",
         "wrong-bank open 100 payee"),
    case("back-credit-at-payers", f"{SENT} | 1 credit 100 bank=ccb", "wrong-bank new 100 payee",
         "wrong-bank open 100 payee", "wrong-bank open 100 payee"),
    case("back-debit-at-payees", "1 order 100 | 1 debit 100 bank=icbc | 1 credit 100",
         "wrong-bank new 100 payee", "wrong-bank open 100 payee", "wrong-bank open 100 payee"),
    case("stray-and-explained", f"{SENT} | 1 credit 100 bank=icbc", "wrong-bank new 100 payee",
         "explained explained 100 payee", "explained explained 100 payee", is_explained=True),
]  # fmt: skip
BY_RULES = {
    # One debit and one credit, whatever the rules say: nothing else agrees.
    "": [
        case("honest", DONE, "matched"),
        case("honest-yen", "1 order 5 | 1 debit 5 | 1 credit 5", "matched", currency="JPY"),
        case("honest-dinar", "2 order 1234567 | 2 debit 1234567 | 2 credit 1234567", "", "matched",
             currency="KWD"),
        case("unclaimed", f"{SENT} | 1 credit 100 account=unclaimed", "matched"),
        case("tolerated", f"{SENT} | 1 credit 99", "matched", currency="EUR"),
        case("not-tolerated", f"{SENT} | 1 credit 98", "amount-mismatch new 2 transit",
             "amount-mismatch open 2 transit", "amount-mismatch open 2 transit", currency="EUR"),

        # Time
        case("cut-off", "1e order 250 | 1e debit 250 | 2 credit 250", "in-flight new 250 transit",
             "matched closed", currency="JPY"),
        case("lost", "1e order 300 | 1e debit 300", "in-flight new 300 transit",
             "delivered-uncredited changed 300 transit", "delivered-uncredited open 300 transit"),
        case("late-by-one", f"{SENT} | 2 credit 100", "delivered-uncredited new 100 transit",
             "matched closed", currency="KWD"),
        case("late-by-two", f"{SENT} | 3 credit 100", "delivered-uncredited new 100 transit",
             "delivered-uncredited open 100 transit", "matched closed"),
        case("waiting", "1 order 100 queue=1 | 1 debit 100 | 3 credit 100",
             "committed-undelivered new 100 transit", "committed-undelivered open 100 transit",
             "matched closed"),
        case("backdated", "2 order 100 | 2 debit 100 | 2 credit 100 at=1", "",
             "prior-period new 100 payee", "prior-period open 100 payee"),

        # Rolled back and returned
        case("void", "1 half 100 | 1 rollback", "rolled-back"),
        case("void-by-night", "1e half 100 | 2 rollback", "in-flight new 100 nobody",
             "rolled-back closed"),
        case("returned", "1 half 100 | 1 debit 100 | 1 rollback | 1 return 100", "returned"),
        case("returned-next", "1 half 100 | 1 debit 100 | 1 rollback | 2 return 100",
             "rolled-back-but-debited new 100 transit", "returned closed"),
        case("refused", f"{SENT} | 2 return 100", "delivered-uncredited new 100 transit",
             "returned closed", currency="EUR"),
        case("returned-in-part", f"{SENT} | 1 return 99", "amount-mismatch new 1 transit",
             "amount-mismatch open 1 transit", "amount-mismatch open 1 transit"),

        # Credits that are taken back
        case("recalled", f"{DONE} | 1 recall 100 | 1 return 100", "returned"),
        case("recalled-by-night", f"{DONE} | 2e recall 100 | 3 return 100", "matched",
             "in-flight reopened 100 transit", "returned closed"),
        case("recalled-only", f"{DONE} | 2 recall 100", "matched",
             "recalled-unreturned reopened 100 transit", "recalled-unreturned open 100 transit"),
        case("recalled-in-part", f"{DONE} | 2 recall 30 | 3 return 30", "matched",
             "recalled-unreturned reopened 30 transit", "returned closed", currency="KWD"),
        case("returned-too-little", f"{DONE} | 1 recall 100 | 1 return 60 | 3 return 40",
             "recalled-unreturned new 40 transit", "recalled-unreturned open 40 transit",
             "returned closed"),
        case("returned-too-much", f"{DONE} | 1 recall 60 | 1 return 100",
             "double-credit new 40 both", "double-credit open 40 both",
             "double-credit open 40 both"),
        case("not-recalled", f"{DONE} | 2 return 100", "matched", "double-credit reopened 100 both",
             "double-credit open 100 both"),
        case("recalled-too-much", f"{DONE} | 1 recall 150 | 1 return 150",
             "double-credit new 150 both", "double-credit open 150 both",
             "double-credit open 150 both"),
        case("recalled-in-error", f"{DONE} | 2 recall 100 | 2 credit 100", "matched",
             "double-credit reopened 100 payee", "double-credit open 100 payee"),

        # Twice
        case("same-id", f"{DONE} | 2 order 100 | 2 debit 100 | 2 credit 100", "matched",
             "duplicate-id reopened 100 payee", "duplicate-id open 100 payee"),
        case("same-id-as-void",
             "1 half 70 | 1 rollback | 2 order 100 | 2 debit 100 | 2 credit 100", "rolled-back",
             "matched"),
        case("two-debits", f"{SENT} | 1 debit 100 | 1 credit 100",
             "duplicate-debit new 100 transit", "duplicate-debit open 100 transit",
             "duplicate-debit open 100 transit"),
        case("two-returns", "1 half 100 | 1 debit 100 | 1 rollback | 1 return 100 | 2 return 100",
             "returned", "duplicate-debit reopened 100 payer", "duplicate-debit open 100 payer"),
        case("two-credits", f"{DONE} | 2 credit 100", "matched",
             "double-credit reopened 100 payee", "double-credit open 100 payee"),
        case("two-messages", f"1 order 100 | {DONE}", "duplicate-message new 100 payee",
             "duplicate-message open 100 payee", "duplicate-message open 100 payee"),
        case("copied-credit", f"{DONE} | 1 credit 100 again", "duplicate-credit new 100 payee",
             "duplicate-credit open 100 payee", "duplicate-credit open 100 payee",
             off=("gapless ccb 2",) * 3),
        case("copied-debit", f"{SENT} | 1 debit 100 again | 1 credit 100",
             "duplicate-debit new 100 transit", "duplicate-debit open 100 transit",
             "duplicate-debit open 100 transit", off=("gapless icbc 2",) * 3),
        case("unasked-parts", f"{SENT} | 1 credit 60 | 1 credit 40",
             "double-credit new 100 payee", "double-credit open 100 payee",
             "double-credit open 100 payee"),
        case("unasked-fee", f"{SENT} | 1 credit 97 | 1 fee 3", "amount-mismatch new 3 payee",
             "amount-mismatch open 3 payee", "amount-mismatch open 3 payee"),

        # Facts that differ
        case("amount-of-debit", "1 order 100 | 1 debit 90 | 1 credit 100",
             "amount-mismatch new 10 payee", "amount-mismatch open 10 payee",
             "amount-mismatch open 10 payee", currency="JPY"),
        case("amount-of-credit", f"{SENT} | 1 credit 99", "amount-mismatch new 1 transit",
             "amount-mismatch open 1 transit", "amount-mismatch open 1 transit", currency="KWD"),
        case("amount-of-message", "1 order 110 | 1 debit 100 | 1 credit 100",
             "amount-mismatch new 10 payee", "amount-mismatch open 10 payee",
             "amount-mismatch open 10 payee"),
        case("amount-of-copy",
             "1 order 100 id=X | 1 send 90 id=X | 1 debit 100 | 1 credit 100",
             "amount-mismatch new 10 payee", "amount-mismatch open 10 payee",
             "amount-mismatch open 10 payee"),
        case("currency-of-debit", "1 order 100 | 1 debit 100 currency=EUR | 1 credit 100",
             "currency-mismatch new 100 payee", "currency-mismatch open 100 payee",
             "currency-mismatch open 100 payee"),
        case("currency-of-credit", f"{SENT} | 1 credit 100 currency=KWD",
             "currency-mismatch new 100 payee", "currency-mismatch open 100 payee",
             "currency-mismatch open 100 payee"),
        case("currency-of-message", "1 order 100 currency=EUR | 1 debit 100 | 1 credit 100",
             "currency-mismatch new 100 payee", "currency-mismatch open 100 payee",
             "currency-mismatch open 100 payee"),
        case("payer-of-debit", "1 order 100 | 1 debit 100 account=eve | 1 credit 100",
             "account-mismatch new 100 payee", "account-mismatch open 100 payee",
             "account-mismatch open 100 payee"),
        case("payee-of-credit", f"{SENT} | 1 credit 100 account=eve",
             "account-mismatch new 100 payee", "account-mismatch open 100 payee",
             "account-mismatch open 100 payee"),
        case("payee-of-message", "1 order 100 payee=eve | 1 debit 100 | 1 credit 100",
             "account-mismatch new 100 payee", "account-mismatch open 100 payee",
             "account-mismatch open 100 payee"),
        case("credit-of-the-bank", f"{SENT} | 1 credit 100 account=capital",
             "account-mismatch new 100 payee", "account-mismatch open 100 payee",
             "account-mismatch open 100 payee"),
        case("wrong-sign", "1 order 100 | 1 debit -100 | 1 credit 100",
             "amount-mismatch new 200 payee", "amount-mismatch open 200 payee",
             "amount-mismatch open 200 payee"),
        case("wrong-sign-of-order", "1 order -100 | 1 debit 100 | 1 credit 100",
             "amount-mismatch new 200 payee", "amount-mismatch open 200 payee",
             "amount-mismatch open 200 payee"),

        # One side is missing
        case("by-hand", "1 credit 100", "credit-without-message new 100 payee",
             "credit-without-message open 100 payee", "credit-without-message open 100 payee"),
        case("forged", "1 send 100", "message-without-debit new 100 nobody",
             "message-without-debit open 100 nobody", "message-without-debit open 100 nobody"),
        case("forged-and-paid", "1 send 100 | 1 credit 100",
             "message-without-debit new 100 payee", "message-without-debit open 100 payee",
             "message-without-debit open 100 payee"),
        case("not-debited", "1 order 100 | 1 credit 100 | 3 debit 100",
             "committed-but-not-debited new 100 payee", "committed-but-not-debited open 100 payee",
             "matched closed"),
        case("not-ordered", "1 debit 100 | 2 order 100 | 2 credit 100",
             "debit-without-message new 100 transit", "matched closed"),
        case("parked", "1 half 100 | 1 debit 100 | 1 park | 2 commit | 2 credit 100",
             "parked new 100 transit", "matched closed"),
        case("parked-void", "1 half 100 | 1 park | 3 rollback", "parked new 100 nobody",
             "parked open 100 nobody", "rolled-back closed"),
        case("dead", f"{SENT} | 1 dead", "dead-letter new 100 transit",
             "dead-letter open 100 transit", "dead-letter open 100 transit"),
        case("resent", f"{SENT} | 1 dead | 2 credit 100", "dead-letter new 100 transit",
             "matched closed", currency="JPY"),

        # A person has explained the break.
        case("explained", f"{DONE} | 1 credit 100", "double-credit new 100 payee",
             "explained explained 100 payee", "explained explained 100 payee", is_explained=True),
        case("explained-too-early", "1 credit 100 | 2 credit 50",
             "credit-without-message new 100 payee", "double-credit changed 150 payee",
             "double-credit open 150 payee", is_explained=True),
        case("explained-and-paid", f"{SENT} | 3 credit 100", "delivered-uncredited new 100 transit",
             "explained explained 100 transit", "matched closed", is_explained=True),

        # The matcher agrees, and the books do not.
        case("one-sided", f"{SENT} | 1 credit 100 alone", "matched",
             off=("clearing 100, double-entry ccb 100",) * 3),
        case("extra-clearing", f"{DONE} | 1 clear 7", "matched", currency="KWD",
             off=("clearing 7, double-entry ccb 7",) * 3),
        case("edited", f"{DONE} | 1 edit 500", "matched",
             off=("account-table ccb payee -500",) * 3),
        case("deleted", f"{DONE} | 2 forget", "matched", currency="EUR", off=("", *[(
            "roll-forward ccb payee -100, roll-forward ccb clearing 100, "
            "roll-forward-rows ccb payee -1, roll-forward-rows ccb clearing -1")] * 2)),
        case("unnumbered", f"{SENT} | 1 credit 100 unnumbered", "matched",
             off=("gapless ccb 2",) * 3),
        case("nameless", "1 credit 100 nameless alone", "credit-without-message new 100 payee",
             "credit-without-message open 100 payee", "credit-without-message open 100 payee",
             off=("clearing 100, double-entry ccb 100",) * 3),
        *AT_THE_WRONG_BANK,
    ],
    # Parts and batches agree, and the payee bears the charges.
    '[outcomes]\nparts = true\ncharges = "payee"\ncharges_max = { CNY = 10 }': [
        case("parts", f"{SENT} | 1 credit 60 | 1 credit 40", "matched", currency="KWD"),
        case("parts-next", f"{SENT} | 1 credit 60 | 2 credit 40",
             "delivered-uncredited new 40 transit", "matched closed", currency="EUR"),
        case("parts-by-night", "1e order 100 | 1e debit 100 | 1e credit 60 | 2 credit 40",
             "in-flight new 40 transit", "matched closed", currency="JPY"),
        case("parts-too-much", f"{SENT} | 1 credit 60 | 2 credit 50",
             "delivered-uncredited new 40 transit", "double-credit changed 10 payee",
             "double-credit open 10 payee"),
        case("parts-elsewhere", f"{SENT} | 1 credit 60 | 1 credit 40 account=eve",
             "account-mismatch new 100 payee", "account-mismatch open 100 payee",
             "account-mismatch open 100 payee"),
        case("parts-all-elsewhere", f"{SENT} | 1 credit 60 account=eve | 1 credit 40 account=eve",
             "account-mismatch new 100 payee", "account-mismatch open 100 payee",
             "account-mismatch open 100 payee"),
        case("parts-unclaimed", f"{SENT} | 1 credit 60 | 1 credit 40 account=unclaimed", "matched"),
        case("parts-refused", f"{SENT} | 1 credit 60 | 2 return 40",
             "delivered-uncredited new 40 transit", "returned closed"),
        case("parts-recalled", f"{SENT} | 1 credit 60 | 1 credit 40 | 2 recall 40 | 2 return 40",
             "matched", "returned"),
        case("parts-recalled-elsewhere",
             f"{SENT} | 1 credit 60 | 1 credit 40 | 1 recall 40 account=eve | 1 return 40",
             "account-mismatch new 100 both", "account-mismatch open 100 both",
             "account-mismatch open 100 both"),
        case("copied-part", f"{SENT} | 1 credit 50 | 1 credit 50 again",
             "duplicate-credit new 100 payee", "duplicate-credit open 100 payee",
             "duplicate-credit open 100 payee", off=("gapless ccb 2",) * 3),
        case("two-payees", "1 order 60 | 1 order 40 payee=carl | 1 debit 100 | 1 credit 60 | "
             "1 credit 40 account=carl", "matched"),
        case("two-payees-swapped", "1 order 60 | 1 order 40 payee=carl | 1 debit 100 | "
             "1 credit 40 | 1 credit 60 account=carl", "account-mismatch new 100 payee",
             "account-mismatch open 100 payee", "account-mismatch open 100 payee"),
        case("two-payers", "1 order 60 | 1 order 40 payer=carl | 1 debit 60 | "
             "1 debit 40 account=carl | 1 credit 100", "matched"),
        case("two-payers-swapped", "1 order 60 | 1 order 40 payer=carl | 1 debit 40 | "
             "1 debit 60 account=carl | 1 credit 100", "account-mismatch new 100 payee",
             "account-mismatch open 100 payee", "account-mismatch open 100 payee"),
        case("fee", f"{SENT} | 1 credit 97 | 1 fee 3", "matched"),
        case("fee-too-high", f"{SENT} | 1 credit 89 | 1 fee 11", "fee-too-high new 11 payee",
             "fee-too-high open 11 payee", "fee-too-high open 11 payee"),
        case("fee-missing", f"{SENT} | 1 credit 97", "delivered-uncredited new 3 transit",
             "delivered-uncredited open 3 transit", "delivered-uncredited open 3 transit"),
        case("fee-too-much", f"{SENT} | 1 credit 97 | 1 fee 5", "amount-mismatch new 2 payee",
             "amount-mismatch open 2 payee", "amount-mismatch open 2 payee"),
        case("part-at-payers", f"{SENT} | 1 credit 60 | 1 credit 40 bank=icbc",
             "wrong-bank new 100 payee", "wrong-bank open 100 payee",
             "wrong-bank open 100 payee"),
        *AT_THE_WRONG_BANK,
    ],
    # The payer bears the charges.
    '[outcomes]\ncharges = "payer"\ncharges_max = { JPY = 10, CNY = 10 }': [
        case("payers-fee", "1 order 100 | 1 debit 103 | 1 fee 3 | 1 credit 100", "matched",
             currency="JPY"),
        case("payers-fee-missing", "1 order 100 | 1 debit 103 | 1 credit 100",
             "amount-mismatch new 3 transit", "amount-mismatch open 3 transit",
             "amount-mismatch open 3 transit"),
        case("payers-fee-too-much", "1 order 100 | 1 debit 103 | 1 fee 4 | 1 credit 100",
             "amount-mismatch new 1 payee", "amount-mismatch open 1 payee",
             "amount-mismatch open 1 payee"),
        *AT_THE_WRONG_BANK,
    ],
}  # fmt: skip

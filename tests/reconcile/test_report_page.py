"""The page of a run: its structure, its sums, and no markup but our own."""

import base64
import hashlib
import re
from decimal import Decimal
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from tests.reconcile import runs
from txmq.reconcile.classes import Class
from txmq.reconcile.report.page import page
from txmq.reconcile.summary import Past

VOID = {"meta", "link", "br", "hr", "img", "input"}
HOSTILE = '</td><script>alert("x")</script>\' onload=\u202egnp.\x00\x1b[0m{{ 7*7 }}&amp;'


class Node:
    def __init__(self, tag, attrs, parent):
        self.tag, self.attrs, self.parent, self.parts = tag, attrs, parent, []

    def all(self, *tags):
        for part in self.parts:
            if isinstance(part, Node):
                if not tags or part.tag in tags:
                    yield part
                yield from part.all(*tags)

    def one(self, tag=None, **attrs):
        wanted = {name.rstrip("_"): text for name, text in attrs.items()}
        found = self.all(*filter(None, [tag]))
        hits = [node for node in found if wanted.items() <= node.attrs.items()]
        assert len(hits) == 1, (tag, attrs, len(hits))
        return hits[0]

    def up(self, tag):
        node = self.parent
        while node is not None and node.tag != tag:
            node = node.parent
        return node

    @property
    def text(self):
        told = (part if isinstance(part, str) else part.text for part in self.parts)
        return " ".join(" ".join(told).split())

    def has(self, name):
        return name in self.attrs.get("class", "").split()


class Tree(HTMLParser):
    """Strict: every element is closed by its own end tag."""

    def __init__(self):
        super().__init__()
        self.root = self.at = Node("", {}, None)

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names)
        made = Node(tag, {name: text or "" for name, text in attrs}, self.at)
        self.at.parts.append(made)
        if tag not in VOID:
            self.at = made

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert tag == self.at.tag, f"</{tag}> closes <{self.at.tag}>"
        self.at = self.at.parent

    def handle_data(self, data):
        self.at.parts.append(data)


def tree(run):
    parser = Tree()
    parser.feed(page(run).decode())
    parser.close()
    assert parser.at is parser.root
    return parser.root


@pytest.fixture
def busy():
    return runs.run(runs.busy())


def with_first_item(run, **changes):
    first, *others = run.result.items
    return runs.with_result(run, items=(first | changes, *others))


def every_kind():
    busy = runs.run(runs.busy())
    return {
        "busy": busy,
        "clean": runs.run(runs.clean()),
        "signed": runs.signed(busy),
        "prepared": runs.signed(busy, reviewer=""),
        "first day": runs.run(runs.busy(), trend=(), previous_run_id=None),
        "nothing": runs.run(runs.result(digits={}, controls=(), contents={}), trend=(), stages=()),
        "not over": runs.run(runs.busy(is_final=False, as_of_ms=runs.END_MS - 3_600_000)),
    }


@pytest.fixture(params=every_kind().items(), ids=lambda row: row[0])
def any_page(request):
    return tree(request.param[1])


def cells(row):
    return [part.text for part in row.parts if isinstance(part, Node)]


def rows(table, part):
    return [row for node in table.all(part) for row in node.all("tr")]


def grid(table, part):
    """The texts of a table's rows; a heading that spans several rows is repeated in each."""
    found, left = [], 0
    for row in rows(table, part):
        texts = cells(row)
        if left:
            texts.insert(0, found[-1][0])
        else:
            left = int(next(row.all("th", "td")).attrs.get("rowspan", 1))
        left -= 1
        found.append(texts)
    return found


def section(page, name):
    """The section of this kind, or with this label."""
    for node in page.all("section"):
        if node.has(name) or node.attrs.get("aria-labelledby") == name:
            return node
    raise AssertionError(name)


def number(text):
    return Decimal(text.split()[0].replace(",", ""))


def test_the_same_run_gives_the_same_page(busy):
    assert page(busy) == page(runs.run(runs.busy()))


def test_headings_are_in_order(any_page):
    levels = [int(node.tag[1]) for node in any_page.all("h1", "h2", "h3", "h4", "h5", "h6")]

    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))


def test_ids_are_unique_and_every_link_and_label_has_a_target(any_page):
    ids = [node.attrs["id"] for node in any_page.all() if "id" in node.attrs]
    links = [node.attrs["href"] for node in any_page.all("a", "use")]
    labels = {
        node.attrs[name]
        for node in any_page.all()
        for name in ("aria-labelledby", "aria-describedby")
        if name in node.attrs
    }

    assert len(set(ids)) == len(ids)
    assert all(link[0] == "#" and link[1:] in ids for link in links)
    assert labels <= set(ids)
    assert any_page.one("html").attrs["lang"] == "en"
    assert any_page.one("body").parts[1].attrs == {"class": "skip", "href": "#main"}
    for landmark in ("header", "nav", "main", "footer"):
        any_page.one(landmark)


def test_every_table_has_a_caption_and_headings_with_a_scope(any_page):
    tables = list(any_page.all("table"))

    assert tables
    for table in tables:
        assert table.parts[1].tag == "caption"
        assert table.one("caption").text
        assert {node.attrs.get("scope") for node in table.all("th")} <= {"col", "row", "rowgroup"}
        region = table.parent
        assert region.attrs["role"] == "region"
        assert region.attrs["tabindex"] == "0"
        assert region.attrs["aria-label"]
        columns = len(list(table.one("thead").all("th")))
        for part in table.all("tbody", "tfoot"):
            spanned = 0
            for row in part.all("tr"):
                nodes = list(row.all("th", "td"))
                spans = [int(node.attrs.get("colspan", 1)) for node in nodes]
                assert sum(spans) + (spanned > 0) == columns
                spanned = max(spanned - 1, int(nodes[0].attrs.get("rowspan", 1)) - 1)
            assert spanned == 0


def test_every_region_has_a_unique_name(any_page):
    names = [node.attrs["aria-label"] for node in any_page.all() if "aria-label" in node.attrs]

    assert len(set(names)) == len(names)


def test_every_chart_has_a_title_and_a_description(any_page):
    titles = []
    for chart in any_page.all("svg"):
        if chart.attrs.get("role") == "img":
            named, told = chart.attrs["aria-labelledby"], chart.attrs["aria-describedby"]
            titles.append(chart.one("title", id=named).text)
            assert re.search(r"\d", chart.one("desc", id=told).text)
        elif chart.up("svg") is None:
            assert chart.attrs["aria-hidden"] == "true"
    assert all(titles)
    assert len(set(titles)) == len(titles)


def test_charts_of_days_agree_with_their_table(busy):
    found = tree(busy)
    said = {cells(row)[0]: row.text for row in rows(found.one("table", id="days"), "tbody")}
    told = [
        node.text.split(": ")
        for chart in found.all("figure")
        if chart.has("trend")
        for node in chart.all("title")
        if ": " in node.text
    ]

    assert len(told) == 4 * len(said)
    assert all(value.split()[0] in said[day] for day, value in told)


def test_the_last_row_is_the_sum_of_all_classes(busy):
    table = tree(busy).one("table", id="totals")
    sums = {}
    for _, currency, *numbers in (row for row in grid(table, "tbody") if len(row) > 1):
        so_far = sums.setdefault(currency, [Decimal()] * len(numbers))
        sums[currency] = [a + number(b) for a, b in zip(so_far, numbers, strict=True)]

    said = {row[1]: [number(cell) for cell in row[2:]] for row in grid(table, "tfoot")}
    assert said == sums
    assert said["CNY"][1] == Decimal(
        sum(total.debited for total in busy.result.totals if total.currency == "CNY")
    ).scaleb(-2)


def test_ages_add_up_in_both_directions(busy):
    table = tree(busy).one("table", id="aging")
    body = grid(table, "tbody")

    for row in body:
        assert sum(number(item) for item in row[2:-1]) == number(row[-1])
    for _, currency, *numbers in grid(table, "tfoot"):
        columns = zip(*(row[2:] for row in body if row[1] == currency), strict=True)
        assert [sum(map(number, column)) for column in columns] == list(map(number, numbers))


def test_each_class_is_named_once_and_has_its_currencies_together(busy):
    page = tree(busy)
    names = [node.text.split()[0] for node in page.one("table", id="totals").all("th")]
    ages = [row[:2] for row in grid(page.one("table", id="aging"), "tbody")]

    assert names.count("dead-letter") == 1
    assert ["dead-letter", "CNY"] in ages
    assert ages[ages.index(["dead-letter", "CNY"]) + 1] == ["dead-letter", "USD"]


def test_each_reason_links_to_its_break_or_proof(busy):
    page = tree(busy)
    links = {link.text: link.attrs["href"][1:] for link in section(page, "verdict").all("a")}
    shown = [page.one("tr", id=links[why]).text for why in busy.result.why]

    assert "credited 50,000.00" in shown[0]
    assert "9 business days" in shown[1]
    assert "account-table" in shown[2]
    assert "no" in shown[2].split()


def test_a_reason_whose_item_is_not_shown_has_no_link(busy):
    run = runs.with_result(busy, items=(), why_at=("break-gone", "evidence"))
    verdict = section(tree(run), "verdict")

    assert [link.attrs["href"] for link in verdict.all("a")] == ["#evidence"]
    assert [node.text for node in verdict.all("li")] == list(busy.result.why)


def test_a_day_without_transfers_has_no_match_rate():
    """Transfers carried over from earlier days are neither its own nor unmatched."""
    carried = runs.total(Class.IN_FLIGHT, "CNY", 3, 100, "DO")
    quiet = runs.result(totals=(carried,), carried=3)
    page = tree(runs.run(quiet))
    chart = next(node for node in page.all("svg") if "Match rate" in node.text)

    assert (quiet.own_transfers, quiet.past.transfers) == (0, 0)
    assert rows(page.one("table", id="days"), "tbody")[0].text.split()[2:5] == [
        "no", "transfers", "0",
    ]  # fmt: skip
    assert len(list(chart.all("circle"))) == len(runs.TREND)
    assert "points" not in page.text


def test_an_age_of_one_business_day_is_singular(busy):
    assert "Oldest break 1 business day since" in tree(runs.with_result(busy, oldest_days=1)).text


def test_every_class_is_named_on_the_page(busy):
    told = section(tree(busy), "classes").text

    assert [class_.value for class_ in Class if class_.value not in told] == []


@pytest.mark.parametrize(
    ("result", "mood", "words"),
    [
        (runs.busy(), "bad", "Over the limits"),
        (runs.clean(), "good", "Clean"),
        (replace(runs.busy(), verdict="within limits"), "wait", "Breaks within limits"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_verdict_is_in_words_and_has_its_reasons(result, mood, words):
    verdict = section(tree(runs.run(result)), "verdict")

    assert verdict.has(mood)
    assert verdict.one("h2").text == words
    assert verdict.one("use").attrs["href"] == f"#icon-{mood}"
    assert [node.text for node in verdict.all("li")] == list(result.why)


def test_evidence_shows_all_sides_of_a_transfer(busy):
    one = next(item for item in busy.result.items if item["class"] == "dead-letter")
    row = next(row for row in tree(busy).all("tr") if one["break_id"] in row.text and row.one("th"))

    told = [one[name] for name in ("key", "payer", "payee", "message_id", "reason", "status")]
    told += ["915.00", "committed, dead", "decided by producer", "booked by icbc"]
    assert [text for text in told if text not in row.text] == []


def test_evidence_names_the_wrong_bank_that_booked_a_side(busy):
    both = {"debit_bank": "icbc", "credit_bank": "boc / ccb"}
    run = with_first_item(busy, **both | {"class": "wrong-bank"})

    assert "booked by icbc → boc / ccb" in tree(run).text


def test_a_doubtful_id_is_shown_with_the_item_that_may_belong_to_it(busy):
    run = with_first_item(busy, id_doubt="blanks, case", suggestion="icbc/t-1")
    text = tree(run).text

    assert "check the id: blanks, case" in text
    assert "may belong to icbc/t-1" in text
    assert "check the id" not in tree(busy).text


def test_decisions_by_hand_are_shown_with_their_reasons(busy):
    first, second = busy.result.decisions

    told = section(tree(busy), "decisions").text

    assert "2 of 5 decisions" in told
    assert "the table by_hand has the others" in told
    places = [told.index(text) for text in (first["key"], first["reason"], second["reason"])]
    assert places == sorted(places)
    sides = first["message_id"], first["payer"], first["payee"]
    for shown in (*sides, "8,800.00 CNY", "rolled back"):
        assert shown in told
    assert "No decisions" in section(tree(runs.run(runs.clean())), "decisions").text


@pytest.mark.parametrize(
    ("made", "state"),
    [
        (lambda run: run, "unsigned"),
        (lambda run: runs.signed(run, reviewer=""), "prepared"),
        (runs.signed, "signed"),
        (lambda run: runs.signed(run, result_digest="0" * 64), "invalidated"),
    ],
)
def test_the_signature_section_shows_its_state(busy, made, state):
    signatures = section(tree(made(busy)), "signatures")

    assert next(signatures.all("p")).text.split()[0] == state
    assert busy.result_digest in signatures.text
    assert ("0" * 64 in signatures.text) == (state == "invalidated")
    assert ("Zhao Lei" in signatures.text) == (state in {"signed", "invalidated"})


def test_a_day_that_is_not_over_says_so(busy):
    made = runs.run(runs.busy(is_final=False, as_of_ms=runs.END_MS - 3_600_000))

    told = "The day was not over: the books were read at 2026-11-20 15:00:00+00:00"
    assert told in tree(made).text
    assert "The day was not over" not in tree(busy).text


def test_amounts_have_the_digits_of_their_currency():
    great = 2**62 + 1
    totals = tuple(
        runs.total(Class.MATCHED, currency, 1, great, "DCO") for currency in ("CNY", "JPY", "KWD")
    )
    made = runs.run(runs.result(totals=totals, digits={"CNY": 2, "JPY": 0, "KWD": 3}), trend=())
    text = tree(made).text

    for digits in (0, 2, 3):
        assert f"{Decimal(great).scaleb(-digits):,}" in text


def test_a_hostile_text_adds_no_markup():
    tame, hostile = tree(runs.with_texts("tame")), tree(runs.with_texts(HOSTILE))

    assert [node.tag for node in hostile.all()] == [node.tag for node in tame.all()]
    assert [set(node.attrs) for node in hostile.all()] == [set(node.attrs) for node in tame.all()]
    assert hostile.text.count('</td><script>alert("x")</script>') >= 30


def test_invisible_characters_are_spelled_out():
    text = page(runs.with_texts(HOSTILE)).decode()

    assert "⟨U+202E⟩gnp.⟨U+0000⟩⟨U+001B⟩[0m{{ 7*7 }}&amp;amp;" in text
    invisible = r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]"
    assert re.findall(invisible, text) == []


def test_the_page_loads_nothing(any_page):
    assert not list(any_page.all("script", "link", "img", "iframe", "object", "form", "base"))
    for node in any_page.all():
        assert {"src", "srcset", "style", "action", "data"} & set(node.attrs) == set()
        assert not any(name.startswith("on") for name in node.attrs)
    style = "".join(any_page.one("style").parts)
    assert "url(" not in style
    assert "@import" not in style


def test_the_content_security_policy_allows_only_our_style(any_page):
    style = "".join(any_page.one("style").parts)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = (
        node.attrs["content"]
        for node in any_page.all("meta")
        if node.attrs.get("http-equiv") == "Content-Security-Policy"
    )

    ours = f"style-src 'sha256-{digest}'"
    assert policy == f"default-src 'none'; {ours}; base-uri 'none'; form-action 'none'"


def test_many_days_are_drawn_with_few_labels():
    trend = tuple(
        Past(f"2026-10-{day:02d}", 1_000, 0.5 + day / 100, day, 0, {"CNY": day * 100}, "clean")
        for day in range(1, 32)
    )
    found = tree(runs.run(runs.busy(), trend=trend))
    chart = next(node for node in found.all("figure") if node.has("trend"))

    assert len(list(chart.all("circle"))) == 32
    assert len([node for node in chart.all("text") if re.fullmatch(r"\d\d-\d\d", node.text)]) <= 8
    assert all(0 <= Decimal(node.attrs["cy"]) <= 120 for node in chart.all("circle"))


def test_a_difference_is_split_into_what_is_explained_and_the_rest(busy):
    proof = runs.proofs()[0]
    explained = replace(
        proof, is_open=False, by_items=2_000_000, by_person=3_000_000, explained_by="Wu",
        explanation="voucher 771", until="2026-12-31",
    )  # fmt: skip
    told = tree(runs.with_result(busy, proofs=(explained,), broken_proofs=0)).text

    assert "All of them hold or are explained" in told
    parts = "+50,000.00", "+20,000.00 by items", "+30,000.00 by a person"
    for text in (*parts, "voucher 771", "until 2026-12-31"):
        assert text in told


def test_a_signature_shows_the_breaks_it_was_given_despite(busy):
    signed = runs.signed(busy)
    sign_off = replace(signed.sign_off, prepared_despite="the customer knows")

    told = tree(replace(signed, sign_off=sign_off)).text

    assert "in spite of 43 breaks and 1 failed proof: “ the customer knows ”" in told

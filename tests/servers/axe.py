"""Owns axe-core, which finds what keeps people from using a page; it comes from npm."""

from functools import cache

from tools.packages import npm_folder

PACKAGE, VERSION = "axe-core", "4.10.3"
SERIOUS = ("serious", "critical")
CONTRAST = "color-contrast"
"""The rule that takes longest. It has the same result at every width."""
RUN = """([rules, without]) => axe.run(document, {
  resultTypes: ["violations"],
  ...(rules.length ? {runOnly: {type: "rule", values: rules}} : {}),
  rules: Object.fromEntries(without.map(rule => [rule, {enabled: false}])),
}).then(found => found.violations.map(one => [
  one.impact, one.id, one.nodes.slice(0, 3).map(node => node.html.slice(0, 120)),
]))"""


@cache
def script():
    """The path of the script, which a page runs before anything else.

    Raises:
        Unprepared: npm cannot bring it.
    """
    return npm_folder("axe", PACKAGE, VERSION) / PACKAGE / "axe.min.js"


def barriers(page, *rules, without=()):
    """The serious findings on a page, by all rules or by some; empty for a good page."""
    violations = page.evaluate(RUN, [rules, list(without)])
    return [violation for violation in violations if violation[0] in SERIOUS]

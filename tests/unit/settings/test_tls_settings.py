"""TLS settings of clients and brokers, and the account that a certificate names."""

import ssl

import pytest

from txmq.errors import ConfigError
from txmq.security.tls import ClientContext, ClientTls, load_tls, subject_of
from txmq.settings.loading import load
from txmq_broker.access.accounts import AccessRules, AccountSettings, AclFile
from txmq_broker.config import BrokerSettings, ServerTlsSettings
from txmq_broker.core.rocketmq_settings import NAMES


def test_the_environment_turns_tls_on():
    assert load_tls({}) is None
    assert load_tls({"TXMQ_TLS": "off", "TXMQ_TLS_CA": "ca.pem"}) is None
    assert load_tls({"TXMQ_TLS": "on"}) == ClientTls()
    names = {"TXMQ_TLS_CERTIFICATE": "c", "TXMQ_TLS_KEY": "k", "TXMQ_TLS_SERVER_NAME": "n"}
    found = load_tls({"TXMQ_TLS": "ON", **names})
    assert (str(found.certificate), str(found.key), found.server_name) == ("c", "k", "n")
    assert not load_tls({"TXMQ_TLS": "on", "TXMQ_TLS_CHECK_NAMES": "off"}).check_names


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"TXMQ_TLS_CA": "ca.pem"}, "TXMQ_TLS_CA is set and TXMQ_TLS is not; set TXMQ_TLS=on"),
        ({"TXMQ_TLS": "yes"}, "TXMQ_TLS is on or off, not 'yes'"),
        ({"TXMQ_TLS": "on", "TXMQ_TLS_KEY": "k"}, "tls has a key and no certificate; name both"),
        (
            {"TXMQ_TLS": "on", "TXMQ_TLS_SERVER_NAME": "n", "TXMQ_TLS_CHECK_NAMES": "off"},
            "server_name, which check_names=False ignores",
        ),
    ],
)
def test_incomplete_tls_variables_are_refused(environ, why):
    with pytest.raises(ConfigError, match=why):
        load_tls(environ)


def test_a_client_trusts_the_system_authorities_or_those_of_a_file(authority):
    for settings, known in ((ClientTls(), None), (ClientTls(ca=authority.certificate), 1)):
        context = ClientContext(settings).value
        assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert known is None or len(context.get_ca_certs()) == known


def rules(*accounts):
    return AccessRules.of(
        {"f": AclFile(accounts=[AccountSettings(*account) for account in accounts])}
    )


def test_an_account_needs_a_secret_or_a_unique_tls_subject():
    with pytest.raises(ConfigError, match="account the-shop needs a secretKey, a tlsSubject"):
        rules(("the-shop",))
    with pytest.raises(ConfigError, match="the-shop and the-bill have the same tlsSubject x"):
        rules(("the-shop", None, "x"), ("the-bill", None, "x"))


def test_a_full_subject_match_takes_precedence_over_a_common_name():
    found = rules(("by-name", None, "web"), ("by-subject", None, "CN=web,O=Bank"))

    def of(*parts):
        return found.of_subject(subject_of({"subject": [[part] for part in parts]}))

    assert of(("commonName", "web")).name == "by-name"
    assert of(("organizationName", "Bank"), ("commonName", "web")).name == "by-subject"
    assert of(("organizationName", "Other"), ("commonName", "web")).name == "by-name"
    assert of(("commonName", "CN=web,O=Bank")) is None
    assert of(("organizationName", "Bank")) is None


def conf(*arguments):
    return load(BrokerSettings, arguments=arguments, aliases=NAMES).tls


def test_rocketmqs_tls_setting_names_are_accepted():
    files = ("tls.server.certPath=c", "tls.server.keyPath=k", "tls.server.trustCertPath=a")
    wanted = ServerTlsSettings(mode="enforcing", certificate="c", key="k", client_ca="a")
    assert conf("tls.server.mode=enforcing", *files) == wanted
    assert conf(*files, "tls.server.need.client.auth=require").client_ca == "a"
    assert conf(*files, "tls.server.need.client.auth=none").client_ca == ""
    for argument, why in (
        ("tls.server.mode=enforcing", "tls.mode 'enforcing' needs tls.certificate, a PEM file"),
        ("tls.server.need.client.auth=optional", "a certificate that may be absent proves"),
        ("tls.server.authClient=true", "require only if tls.server.trustCertPath names"),
        ("tls.enable=true", "take TXMQ_TLS and the variables after it"),
    ):
        with pytest.raises(ConfigError, match=why):
            conf(argument)

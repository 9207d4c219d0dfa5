"""Messages that a consumer sends back to their broker, to come again later."""

from __future__ import annotations

from txmq.client.session import Session
from txmq.client.settings import ConsumerSettings
from txmq.limits import REASON_CHARS_MAX
from txmq.message import ReceivedMessage
from txmq.protocol import properties
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import SendBack

__all__ = ["Returns"]


class Returns:
    """Sends messages back, to come again later.

    Args:
        session: The way to the brokers.
        group: The group that is to get them again.
        settings: How often they may come.
    """

    def __init__(self, session: Session, group: str, settings: ConsumerSettings) -> None:
        self._session = session
        self._group = group
        self._attempts_max = settings.attempts_max

    async def __call__(self, message: ReceivedMessage, level: int, reason: str = "") -> None:
        """Send a message back.

        Args:
            message: The message.
            level: The delay level it waits for; 0 leaves that to the broker.
            reason: Why; kept with it where it is a dead letter, by brokers that listen.

        Raises:
            TransportError: No answer came; it may come again all the same.
            BrokerRefused: The broker refuses; it does not come again.
        """
        address = await self._session.address_of(message.queue)
        topic = message.properties.get(properties.RETRY_TOPIC, message.topic)
        origin = message.properties.get(properties.ORIGIN_ID, message.id)
        header = SendBack(
            offset=message.position,
            group=self._group,
            delay_level=level,
            origin_msg_id=origin,
            origin_topic=topic,
            unit_mode=False,
            # ``None`` leaves it to the group's setting.
            max_reconsume_times=self._attempts_max,
            reason=properties.one_line(reason, REASON_CHARS_MAX) or None,
        )
        await self._session.request(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)

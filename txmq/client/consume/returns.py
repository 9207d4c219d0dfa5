"""Send messages back to their broker for a later delivery."""

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
    """Sends messages back for a later delivery.

    Args:
        session: The session with the brokers.
        group: The group that will receive them again.
        settings: The maximum number of deliveries.
    """

    def __init__(self, session: Session, group: str, settings: ConsumerSettings) -> None:
        self._session = session
        self._group = group
        self._attempts_max = settings.attempts_max

    async def __call__(self, message: ReceivedMessage, level: int, reason: str = "") -> None:
        """Send a message back.

        Args:
            message: The message.
            level: The delay level; 0 lets the broker choose.
            reason: The reason; brokers that support it store it with a dead letter.

        Raises:
            TransportError: No answer came; the message may still come again.
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

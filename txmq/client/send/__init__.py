"""Producers: what an application sends, from the call to the broker's answer."""

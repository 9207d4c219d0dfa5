"""Place an order of Ann's, as soon as the shop is there: python order.py order-1 500."""

import http.client
import json
import sys
import time
import urllib.error
import urllib.request

body = json.dumps({"id": sys.argv[1], "customer": "ann", "amount": int(sys.argv[2])}).encode()
headers = {"Content-Type": "application/json"}
request = urllib.request.Request("http://127.0.0.1:8001/orders", body, headers)
begun = time.monotonic()
while True:
    try:
        with urllib.request.urlopen(request) as answer:
            print(answer.read().decode())
        break
    except urllib.error.URLError as error:
        if isinstance(error, urllib.error.HTTPError) or time.monotonic() - begun > 60:
            sys.exit(f"{error}: see shop.log")
        time.sleep(0.1)  # It is still starting.
    except http.client.RemoteDisconnected:
        print("no answer: the shop died")
        break

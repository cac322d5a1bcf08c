"""The agent `stock`: one function for each step that names it in a workflow file.

A function may be called several times for the same step. Pass `idempotency_key` to your service, so that it does the
work once; this sample derives everything from the key.
"""

from stepwarden_agent import Agent, Failed


def reserve(request):
    wanted = request["input"]
    if wanted["quantity"] > 100:
        raise Failed(f"there are only 100 of {wanted['item']}", status=409)
    return {"reservation": "R-" + request["idempotency_key"]}


def release(request):
    """Undoes `reserve`, whose key is in `undoes`. It also succeeds if nothing was reserved under that key."""
    print("released", request["undoes"], flush=True)


def pack(request):
    if request["input"]["item"] == "piano":
        raise Failed("a piano fits into no parcel")
    return {"parcel": request["input"]["reservation"].replace("R-", "P-")}


handler = Agent("stock", do={"reserve": reserve, "pack": pack}, undo={"reserve": release})

if __name__ == "__main__":
    handler.run()

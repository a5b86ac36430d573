"""Starts a training on a spot machine, and tells it by SIGTERM when the cloud announces that it takes the machine back.

python with_notice.py aws -- python train.py        (or gcp, or azure)

It ends with the exit status of the training: 75 where that was told to end and has saved.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

BASE = os.environ.get("SPOT_METADATA", "http://169.254.169.254")
"""Where a machine asks about itself; the same address in all three clouds."""
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never by a proxy


def ask(path, method="GET", **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(BASE + path, method=method, headers=named)
    with DIRECT.open(request, timeout=2) as answer:
        return answer.read().decode()


def aws():
    token = ask("/latest/api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds="60")
    try:
        return ask("/latest/meta-data/spot/instance-action", X_aws_ec2_metadata_token=token)
    except urllib.error.HTTPError as error:
        if error.code == 404:  # what it says until there is a notice
            return ""
        raise


def gcp():
    said = ask("/computeMetadata/v1/instance/preempted", Metadata_Flavor="Google")
    return "preempted" if said.strip() == "TRUE" else ""


def azure():
    said = json.loads(ask("/metadata/scheduledevents?api-version=2020-07-01", Metadata="true"))
    return " ".join(
        event["EventType"] for event in said["Events"] if event["EventType"] in ("Preempt", "Terminate")
    )


def watch(notice, training, pause, over):
    silent = False
    while not over.wait(pause):
        try:
            said = notice()
        except (
            OSError,
            ValueError,
        ) as error:  # no answer is no notice, and the training goes on; but it is heard once
            if not silent:
                print(
                    f"with_notice: the metadata service does not answer ({error}); asked again.",
                    file=sys.stderr,
                )
            silent = True
            continue
        if said:
            print(f"with_notice: {said.strip()}; the training is told to save and to end.", file=sys.stderr)
            training.send_signal(signal.SIGTERM)
            return


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cloud", choices=("aws", "gcp", "azure"))
    parser.add_argument("--pause", type=float, default=5.0, help="seconds between two questions")
    if "--" not in sys.argv[:-1]:
        parser.error("the command of the training comes after --")
    at = sys.argv.index("--")
    args = parser.parse_args(sys.argv[1:at])
    training = subprocess.Popen(sys.argv[at + 1 :])
    for number in (signal.SIGTERM, signal.SIGINT):  # what tells this process tells the training
        signal.signal(number, lambda given, _: training.send_signal(given))
    over = threading.Event()
    asking = (globals()[args.cloud], training, args.pause, over)
    threading.Thread(target=watch, args=asking, daemon=True).start()
    status = training.wait()
    over.set()
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()

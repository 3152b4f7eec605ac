"""What each job does in a container by its program: the work, and the attack. Both are lines of shell."""
import os

IMAGE, NEIGHBOUR, HOST = (os.environ[name] for name in ("IMAGE", "NEIGHBOUR", "HOST"))
# Empty on an engine whose user has no limits delegated.
LIMITS = os.environ["LIMITS"]
ALLOWED, CLOSED = os.environ["ALLOWED"], os.environ["CLOSED"]

# What harnesses do as root of a container. Ends with 3.
WORK = (f"set -e; id -u; pwd; touch /srv/f; chown 33:33 /srv/f; stat -c %u /srv/f; su www-data -s /bin/sh -c 'id -u'; mkdir /logs; "
        f"curl -sf -m 5 http://{HOST}:{ALLOWED}/; exit 3")


def attack_line(neighbour=f"{NEIGHBOUR}:80"):
    """The attack: a host that no rule allows, the files of a neighbour, more data than the disk may have."""
    get = "curl -sf -m 4 http://"
    return ("try() { name=$1; shift; if \"$@\" > /dev/null 2>&1; then echo attack $name done; else echo attack $name refused; fi; }; "
            f"try host {get}{HOST}:{CLOSED}/; try neighbour {get}{neighbour}/secret; "
            "try disk dd if=/dev/zero of=/var/fill bs=1M count=160; rm -f /var/fill")


def work(name, *values):
    """Prints one result that must be the same with runc and with brig."""
    text = " | ".join(value.decode() if isinstance(value, bytes) else str(value) for value in values)
    print("work", name, " ".join(text.split()), flush=True)


def attack(output):
    """Prints the attack's results."""
    text = output.decode() if isinstance(output, bytes) else output
    for line in text.splitlines():
        if line.startswith("attack "):
            print(line, flush=True)

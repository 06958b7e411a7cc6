# A Debian that boots systemd, with a user whose service manager starts with it.
ARG BASE
FROM ${BASE}
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
    dbus \
    dbus-user-session \
    libpam-systemd \
    procps \
    python3 \
    systemd \
    systemd-sysv \
 && rm -rf /var/lib/apt/lists/*
# Linger as loginctl enable-linger sets it; the group may read the journal.
RUN useradd --create-home --shell /bin/bash --groups systemd-journal tester \
 && install -D /dev/null /var/lib/systemd/linger/tester
ENV container=docker
STOPSIGNAL SIGRTMIN+3
CMD ["/lib/systemd/systemd"]

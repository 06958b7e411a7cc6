# What images in the field do to a worker, all at once. Built by .ci/images.
FROM workerd-test:small
ENV HOME=/root PYTHONPATH=/image/python http_proxy=http://proxy.invalid:3128
ENTRYPOINT ["/bin/echo", "the entrypoint of the image"]
CMD ["its command"]
VOLUME /anonymous
RUN ["/bin/sh", "-c", "mkdir -p /app /root/w && echo 'print(1)' > /app/w.py && chmod 600 /app/w.py && chmod 700 /root"]
WORKDIR /root/w
STOPSIGNAL SIGUSR1
HEALTHCHECK --interval=1s CMD ["/bin/false"]

# docker build --tag tacit . && docker run --rm tacit
# To keep what it writes: docker run --rm --user "$(id -u)" --volume "$PWD:/data" --workdir /data tacit
FROM python:3.13-slim AS build
WORKDIR /source
COPY . .
RUN python -m venv /opt/tacit && /opt/tacit/bin/pip install --no-cache-dir .

FROM python:3.13-slim
COPY --from=build /opt/tacit /opt/tacit
ENV PATH="/opt/tacit/bin:$PATH"
RUN useradd --create-home --uid 1000 tacit
USER 1000
WORKDIR /home/tacit
ENTRYPOINT ["tacit"]
CMD ["demo", "--out", "demo"]

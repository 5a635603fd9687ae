# The server in a container: docker build -t kukri . && docker run -p 127.0.0.1:8080:8080 -e LLM_API_KEY=… kukri MODEL
FROM python:3.12-slim

COPY . /src/kukri
RUN pip install --no-cache-dir /src/kukri && rm -r /src \
    && useradd --create-home --uid 1000 kukri && mkdir /data && chown kukri /data

# Downloaded models and compiled kernels: a volume keeps them.
ENV KUKRI_HOME=/data HF_HOME=/data/hf
VOLUME /data
USER kukri
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=120s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health')"]

# It must listen on all addresses of the container, which needs LLM_API_KEY.
ENTRYPOINT ["llm", "serve", "--host", "0.0.0.0"]
CMD ["smollm2"]

"""Certificates for tests, made with openssl."""
import subprocess


def make_certificate(folder, name, ca=None):
    """NAME.pem and NAME.key: of a common name, by an authority or its own."""
    def openssl(*args):
        subprocess.run(["openssl", *map(str, args)], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                       timeout=300)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
           "-nodes", "-keyout", f"{name}.key", "-subj", f"/CN={name}")
    if ca is None:
        openssl("req", "-x509", *key, "-out", f"{name}.pem", "-days", 1)
        return
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("req", *key, "-out", f"{name}.csr")
    openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem",
            "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", 1, "-extfile",
            "names", "-out", f"{name}.pem")

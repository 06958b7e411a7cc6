"""Molecular descriptors, and similarity search over a library of molecules that stays in memory."""
import heapq
import logging
import os
import re
import sys
import threading

from rdkit import Chem, DataStructs, rdBase
from rdkit.Chem import Crippen, Descriptors, rdFingerprintGenerator, rdMolDescriptors

from workerd import InvalidParams, Worker

LIBRARY = sys.argv[1] if len(sys.argv) > 1 else "molecules.smi"
LONGEST = 2000  # characters of a SMILES: parsing takes seconds beyond, growing with the cube

worker = Worker()
morgan = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
smiles_only = Chem.SmilesParserParams()
smiles_only.parseName = False


class Reasons(logging.Handler):
    """Keeps what RDKit says while it parses: the only place where it gives the reason of a failure."""

    def __init__(self):
        super().__init__()
        self.lines = []
        self.of_one = threading.Lock()  # one parse at a time, or its reason would be another's

    def emit(self, record):
        self.lines.append(re.sub(r"^\[[\d:]+\] ", "", record.getMessage().strip()))


reasons = Reasons()
rdBase.LogToPythonLogger()
logging.getLogger("rdkit").handlers = [reasons]


class Library:
    def __init__(self):
        self.names = []
        self.smiles = []
        self.fingerprints = []

    def add(self, name, mol):
        self.names.append(name)
        self.smiles.append(Chem.MolToSmiles(mol))
        self.fingerprints.append(morgan.GetFingerprint(mol))


@worker.load
def load(ctx):
    path = os.path.join(str(ctx.weights or "data"), LIBRARY)
    size = max(1, os.path.getsize(path))
    library, done = Library(), 0
    with open(path, "rb") as lines:
        for n, line in enumerate(lines, 1):
            done += len(line)
            if n % 1000 == 0:
                ctx.progress(done / size, "%d molecules" % len(library.names))
            fields = line.decode("utf-8", "replace").split(None, 1)
            if not fields or fields[0].startswith("#"):
                continue
            try:
                library.add(fields[1].strip() if len(fields) > 1 else fields[0], parse(fields[0]))
            except InvalidParams as e:  # one bad line must not keep a library of a million from being searched
                ctx.log.warning("%s:%d: left out: %s", path, n, e)
    if not library.names:
        raise RuntimeError("no molecule in %s" % path)
    ctx.log.info("%d molecules of %s", len(library.names), path)
    return library


@worker.method
def descriptors(library, ctx, smiles: str):
    """Compute the common descriptors of one molecule."""
    mol = parse(smiles)
    return {
        "smiles": Chem.MolToSmiles(mol),
        "formula": rdMolDescriptors.CalcMolFormula(mol),
        "molecular_weight": round(Descriptors.MolWt(mol), 3),
        "logp": round(Crippen.MolLogP(mol), 3),
        "tpsa": round(rdMolDescriptors.CalcTPSA(mol), 2),
        "h_bond_donors": rdMolDescriptors.CalcNumHBD(mol),
        "h_bond_acceptors": rdMolDescriptors.CalcNumHBA(mol),
        "rings": rdMolDescriptors.CalcNumRings(mol),
        "rotatable_bonds": rdMolDescriptors.CalcNumRotatableBonds(mol),
    }


@worker.method
def similarity(library, ctx, smiles: str, k: int = 5, threshold: float = 0.0):
    """Find the k molecules of the library most like this one: Tanimoto over Morgan fingerprints, radius 2, 2048 bits."""
    if k < 1:
        raise InvalidParams("k: want at least 1, got %d" % k)
    if not 0 <= threshold <= 1:
        raise InvalidParams("threshold: want 0 to 1, got %g" % threshold)
    mol = parse(smiles)
    scores = DataStructs.BulkTanimotoSimilarity(morgan.GetFingerprint(mol), library.fingerprints)
    best = heapq.nlargest(k, (i for i, s in enumerate(scores) if s >= threshold), key=scores.__getitem__)
    return {
        "query": Chem.MolToSmiles(mol),
        "searched": len(scores),
        "hits": [{"name": library.names[i], "smiles": library.smiles[i], "similarity": round(scores[i], 4)} for i in best],
    }


def parse(smiles):
    """A molecule, or InvalidParams with RDKit's own reason."""
    if not smiles:
        raise InvalidParams("smiles: is empty")
    if len(smiles) > LONGEST:
        raise InvalidParams("smiles: %d characters, at most %d are read" % (len(smiles), LONGEST))
    if not smiles.isprintable() or " " in smiles:  # RDKit reads up to the first of these and ignores the rest
        raise InvalidParams("smiles: contains a blank or a control character: %r" % smiles)
    with reasons.of_one:
        reasons.lines.clear()
        mol = Chem.MolFromSmiles(smiles, smiles_only)
        if mol is None:
            raise InvalidParams("smiles: %s: %s" % (smiles, reasons.lines[0] if reasons.lines else "not a molecule"))
    return mol


if __name__ == "__main__":
    worker.run()

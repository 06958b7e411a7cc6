// A libnvidia-ml.so.1 for tests. It says what the file named by NVML_STANDIN_SCRIPT tells it, read anew at each call; script.go
// writes that file, and says what each line means. Only what execenv/gpu calls is here, with the layouts of NVIDIA's nvml.h.
// -DNVML_OLD leaves out what an old driver has not.
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

typedef void *device_t;
typedef unsigned long long ull;
enum { OK, UNINITIALIZED, INVALID, NOT_SUPPORTED, NO_DATA_FOUND = 6, SMALL = 7, TIMEOUT = 10, NO_LIBRARY = 12, LOST = 15 };
enum { CARDS = 32, PARTS = 8, PROCESSES = 64, FAILS = 16, XIDS = 64, TEXT = 96 };

struct process { int pid, mib, alive_only; char kind; };
struct part { // a card, or a MIG device of one
	char uuid[TEXT], name[TEXT];
	int total, used, reserved, gi;
	int nprocesses;
	struct process processes[PROCESSES];
};
struct card {
	struct part self;
	int ecc, lost, split, nparts;
	struct part parts[PARTS];
};
struct script {
	int init, ncards, nfails, nxids;
	char driver[TEXT], hang[TEXT], path[4096];
	struct card cards[CARDS];
	struct { char name[TEXT]; int code; } fails[FAILS];
	struct { int card, gi, code; } xids[XIDS];
};

static struct script *load(void) {
	struct script *s = calloc(1, sizeof *s);
	const char *path = getenv("NVML_STANDIN_SCRIPT");
	FILE *f = path ? fopen(path, "r") : NULL;
	char line[1024];
	struct part *at = NULL;
	if (!s) abort();
	snprintf(s->path, sizeof s->path, "%s", path ? path : "");
	if (!f) { // no script: nothing is installed
		s->init = 9;
		return s;
	}
	while (fgets(line, sizeof line, f)) {
		struct process p;
		line[strcspn(line, "\n")] = 0;
		if (sscanf(line, "init %d", &s->init) == 1 || sscanf(line, "driver %95s", s->driver) == 1 || sscanf(line, "hang %95s", s->hang) == 1) continue;
		if (s->nfails < FAILS && sscanf(line, "fail %95s %d", s->fails[s->nfails].name, &s->fails[s->nfails].code) == 2) { s->nfails++; continue; }
		if (s->nxids < XIDS && sscanf(line, "xid %d %d %d", &s->xids[s->nxids].card, &s->xids[s->nxids].gi, &s->xids[s->nxids].code) == 3) { s->nxids++; continue; }
		if (s->ncards < CARDS && !strncmp(line, "card ", 5)) {
			struct card *c = &s->cards[s->ncards];
			at = &c->self;
			at->gi = -1;
			if (sscanf(line, "card %95s %d %d %d %d %d %d %95[^\n]", at->uuid, &at->total, &at->used, &at->reserved, &c->ecc, &c->lost, &c->split, at->name) == 8) { s->ncards++; continue; }
		}
		if (s->ncards > 0 && s->cards[s->ncards - 1].nparts < PARTS && !strncmp(line, "mig ", 4)) {
			struct card *c = &s->cards[s->ncards - 1];
			at = &c->parts[c->nparts];
			if (sscanf(line, "mig %95s %d %d %d %95[^\n]", at->uuid, &at->total, &at->used, &at->gi, at->name) == 5) { c->nparts++; continue; }
		}
		if (at && at->nprocesses < PROCESSES && sscanf(line, "process %d %d %c %d", &p.pid, &p.mib, &p.kind, &p.alive_only) == 4) { at->processes[at->nprocesses++] = p; continue; }
		fprintf(stderr, "nvml stand-in: line not understood: %s\n", line);
		abort();
	}
	fclose(f);
	return s;
}

// enter is the begin of each call: it hangs where the script says so, until it no longer does, and fails where it says so.
static struct script *enter(const char *call, int *code) {
	for (;;) {
		struct script *s = load();
		*code = OK;
		if (strcmp(s->hang, call)) {
			for (int i = 0; i < s->nfails; i++)
				if (!strcmp(s->fails[i].name, call)) *code = s->fails[i].code;
			return s;
		}
		free(s);
		usleep(10000);
	}
}

// ENTER declares s and code, and returns where the call is told to fail. LEAVE frees s.
#define ENTER(call) int code; struct script *s = enter(call, &code); if (code) LEAVE(code)
#define LEAVE(result) do { int r_ = (result); free(s); return r_; } while (0)

static int initialised; // how often; as the real one counts

// A handle is card+1, and part+1 above it.
static device_t handle(int card, int part) { return (device_t)(intptr_t)((card + 1) | (part + 1) << 8); }
static struct card *card_of(struct script *s, device_t d) {
	int i = (int)((intptr_t)d & 0xff) - 1;
	return i >= 0 && i < s->ncards ? &s->cards[i] : NULL;
}
static struct part *part_of(struct script *s, device_t d) {
	struct card *c = card_of(s, d);
	int p = (int)((intptr_t)d >> 8) - 1;
	if (!c) return NULL;
	if (p < 0) return &c->self;
	return p < c->nparts ? &c->parts[p] : NULL;
}
#define DEVICE(d) \
	struct card *c = card_of(s, d); struct part *p = part_of(s, d); \
	if (!__atomic_load_n(&initialised, __ATOMIC_SEQ_CST)) LEAVE(UNINITIALIZED); \
	if (!c || !p) LEAVE(INVALID); \
	if (c->lost) LEAVE(LOST)

// A zombie holds no memory any more.
static int living(int pid) {
	char path[64], text[512], *end;
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	FILE *f = fopen(path, "r");
	if (!f) return 0;
	size_t n = fread(text, 1, sizeof text - 1, f);
	fclose(f);
	text[n] = 0;
	end = strrchr(text, ')');
	return end && end[1] && end[2] != 'Z' && end[2] != 'X';
}

// lingers says whether a dead process still holds its memory: the time counts from when its death was first seen.
static int lingers(int pid, double seconds) {
	static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
	static struct { int pid; double died; } dead[1024];
	static int n;
	struct timespec now;
	double t, died = -1;
	clock_gettime(CLOCK_MONOTONIC, &now);
	t = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
	pthread_mutex_lock(&mu);
	for (int i = 0; i < n; i++)
		if (dead[i].pid == pid) died = dead[i].died;
	if (died < 0) {
		died = t;
		if (n < 1024) { dead[n].pid = pid; dead[n].died = t; n++; }
	}
	pthread_mutex_unlock(&mu);
	return t - died < seconds;
}

// registered calls each for what processes said, in <script>.d/<pid>, that they hold of p.
static void registered(struct script *s, struct part *p, void (*each)(void *, int pid, int mib, int alive), void *arg) {
	char path[4400], line[256], uuid[TEXT];
	DIR *d;
	struct dirent *e;
	snprintf(path, sizeof path, "%s.d", s->path);
	if (!(d = opendir(path))) return;
	while ((e = readdir(d))) {
		char *end;
		int pid = (int)strtol(e->d_name, &end, 10), mib;
		double linger;
		FILE *f;
		if (pid <= 0 || *end) continue;
		snprintf(path, sizeof path, "%s.d/%s", s->path, e->d_name);
		if (!(f = fopen(path, "r"))) continue;
		while (fgets(line, sizeof line, f)) {
			linger = 0;
			if (sscanf(line, "%95s %d %lf", uuid, &mib, &linger) < 2 || strcmp(uuid, p->uuid)) continue;
			if (living(pid)) each(arg, pid, mib, 1);
			else if (linger > 0 && lingers(pid, linger)) each(arg, pid, mib, 0);
		}
		fclose(f);
	}
	closedir(d);
}

static void add(void *sum, int pid, int mib, int alive) { (void)pid; (void)alive; *(int *)sum += mib; }

static int part_used(struct script *s, struct part *p) {
	int mib = p->used;
	for (int i = 0; i < p->nprocesses; i++)
		if (!p->processes[i].alive_only || living(p->processes[i].pid)) mib += p->processes[i].mib > 0 ? p->processes[i].mib : 0;
	registered(s, p, add, &mib);
	return mib;
}

// used is what is held of a device; a card's MIG devices count to it.
static int used(struct script *s, struct card *c, struct part *p) {
	int mib = part_used(s, p);
	if (p == &c->self)
		for (int i = 0; i < c->nparts; i++) mib += part_used(s, &c->parts[i]);
	return mib;
}

static int text(struct script *s, const char *from, char *to, unsigned size) {
	if (strlen(from) >= size) LEAVE(SMALL);
	strcpy(to, from);
	LEAVE(OK);
}

static int init(const char *call) {
	ENTER(call);
	if (s->init) LEAVE(s->init);
	__atomic_add_fetch(&initialised, 1, __ATOMIC_SEQ_CST);
	LEAVE(OK);
}

int nvmlInit(void) { return init("nvmlInit_v2"); }
#ifndef NVML_OLD
int nvmlInit_v2(void) { return init("nvmlInit_v2"); }
#endif

int nvmlShutdown(void) {
	ENTER("nvmlShutdown");
	if (!__atomic_load_n(&initialised, __ATOMIC_SEQ_CST)) LEAVE(UNINITIALIZED);
	__atomic_sub_fetch(&initialised, 1, __ATOMIC_SEQ_CST);
	LEAVE(OK);
}

const char *nvmlErrorString(int code) { (void)code; return "an error of the stand-in"; }

int nvmlSystemGetDriverVersion(char *version, unsigned size) {
	ENTER("nvmlSystemGetDriverVersion");
	if (!__atomic_load_n(&initialised, __ATOMIC_SEQ_CST)) LEAVE(UNINITIALIZED);
	return text(s, s->driver, version, size);
}

static int count(unsigned *n) {
	ENTER("nvmlDeviceGetCount_v2");
	if (!__atomic_load_n(&initialised, __ATOMIC_SEQ_CST)) LEAVE(UNINITIALIZED);
	*n = (unsigned)s->ncards;
	LEAVE(OK);
}
int nvmlDeviceGetCount(unsigned *n) { return count(n); }

static int by_index(unsigned i, device_t *d) {
	ENTER("nvmlDeviceGetHandleByIndex_v2");
	if (!__atomic_load_n(&initialised, __ATOMIC_SEQ_CST)) LEAVE(UNINITIALIZED);
	if (i >= (unsigned)s->ncards) LEAVE(INVALID);
	if (s->cards[i].lost > 1) LEAVE(LOST); // 2: not even a handle
	*d = handle((int)i, -1);
	LEAVE(OK);
}
int nvmlDeviceGetHandleByIndex(unsigned i, device_t *d) { return by_index(i, d); }
#ifndef NVML_OLD
int nvmlDeviceGetCount_v2(unsigned *n) { return count(n); }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, device_t *d) { return by_index(i, d); }
#endif

int nvmlDeviceGetUUID(device_t d, char *uuid, unsigned size) {
	ENTER("nvmlDeviceGetUUID");
	DEVICE(d);
	return text(s, p->uuid, uuid, size);
}

int nvmlDeviceGetName(device_t d, char *name, unsigned size) {
	ENTER("nvmlDeviceGetName");
	DEVICE(d);
	return text(s, p->name, name, size);
}

struct memory { ull total, free, used; };
struct memory_v2 { unsigned version; ull total, reserved, free, used; };

// The first version counts what the driver keeps for itself as used.
int nvmlDeviceGetMemoryInfo(device_t d, struct memory *m) {
	ENTER("nvmlDeviceGetMemoryInfo");
	DEVICE(d);
	m->total = (ull)p->total << 20;
	m->used = (ull)(used(s, c, p) + p->reserved) << 20;
	m->free = m->total > m->used ? m->total - m->used : 0;
	LEAVE(OK);
}

#ifndef NVML_OLD
int nvmlDeviceGetMemoryInfo_v2(device_t d, struct memory_v2 *m) {
	ENTER("nvmlDeviceGetMemoryInfo_v2");
	DEVICE(d);
	if (m->version != (sizeof *m | 2 << 24)) LEAVE(25);
	m->total = (ull)p->total << 20;
	m->reserved = (ull)p->reserved << 20;
	m->used = (ull)used(s, c, p) << 20;
	m->free = m->total > m->used + m->reserved ? m->total - m->used - m->reserved : 0;
	LEAVE(OK);
}
#endif

struct listing { int n, pids[PROCESSES], mibs[PROCESSES]; };
static void list(void *to, int pid, int mib, int alive) {
	struct listing *l = to;
	if (alive && l->n < PROCESSES) { l->pids[l->n] = pid; l->mibs[l->n++] = mib; }
}

static void list_part(struct script *s, struct part *p, char kind, struct listing *l) {
	for (int i = 0; i < p->nprocesses; i++)
		if (p->processes[i].kind == kind && (!p->processes[i].alive_only || living(p->processes[i].pid))) list(l, p->processes[i].pid, p->processes[i].mib, 1);
	if (kind == 'c') registered(s, p, list, l);
}

struct info { unsigned pid; ull used; unsigned gi, ci; };
struct info_v1 { unsigned pid; ull used; };

// -1 MiB means that NVML cannot say.
static ull process_bytes(int mib) { return mib < 0 ? ~0ULL : (ull)mib << 20; }

static int processes(const char *call, device_t d, char kind, unsigned *n, void *to, int old) {
	ENTER(call);
	DEVICE(d);
	struct listing l = {0};
	unsigned room = *n;
	list_part(s, p, kind, &l);
	if (p == &c->self)
		for (int i = 0; i < c->nparts; i++) list_part(s, &c->parts[i], kind, &l);
	*n = (unsigned)l.n;
	if (room < (unsigned)l.n) LEAVE(SMALL);
	for (int i = 0; i < l.n; i++) {
		if (old) ((struct info_v1 *)to)[i] = (struct info_v1){(unsigned)l.pids[i], process_bytes(l.mibs[i])};
		else ((struct info *)to)[i] = (struct info){(unsigned)l.pids[i], process_bytes(l.mibs[i]), (unsigned)p->gi, (unsigned)-1};
	}
	LEAVE(OK);
}

#define PROCESSES_CALL(name, kind) \
	int name(device_t d, unsigned *n, void *to) { return processes(#name, d, kind, n, to, 1); }
#define PROCESSES_CALL_V3(name, kind) \
	int name##_v2(device_t d, unsigned *n, void *to) { return processes(#name, d, kind, n, to, 0); } \
	int name##_v3(device_t d, unsigned *n, void *to) { return processes(#name, d, kind, n, to, 0); }
PROCESSES_CALL(nvmlDeviceGetComputeRunningProcesses, 'c')
PROCESSES_CALL(nvmlDeviceGetGraphicsRunningProcesses, 'g')
#ifndef NVML_OLD
PROCESSES_CALL(nvmlDeviceGetMPSComputeRunningProcesses, 'm')
PROCESSES_CALL_V3(nvmlDeviceGetComputeRunningProcesses, 'c')
PROCESSES_CALL_V3(nvmlDeviceGetGraphicsRunningProcesses, 'g')
PROCESSES_CALL_V3(nvmlDeviceGetMPSComputeRunningProcesses, 'm')

int nvmlDeviceGetTotalEccErrors(device_t d, int type, int counter, ull *n) {
	ENTER("nvmlDeviceGetTotalEccErrors");
	DEVICE(d);
	if (c->ecc < 0) LEAVE(NOT_SUPPORTED);
	*n = type == 1 && counter == 0 ? (ull)c->ecc : 0; // uncorrected, since the driver was loaded
	LEAVE(OK);
}

int nvmlDeviceGetMigMode(device_t d, unsigned *now, unsigned *later) {
	ENTER("nvmlDeviceGetMigMode");
	DEVICE(d);
	*now = *later = (unsigned)c->split;
	LEAVE(OK);
}

int nvmlDeviceGetMaxMigDeviceCount(device_t d, unsigned *n) {
	ENTER("nvmlDeviceGetMaxMigDeviceCount");
	DEVICE(d);
	*n = PARTS - 1;
	LEAVE(OK);
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t d, unsigned i, device_t *to) {
	ENTER("nvmlDeviceGetMigDeviceHandleByIndex");
	DEVICE(d);
	if (i >= (unsigned)c->nparts || c->parts[i].uuid[0] == '-') LEAVE(NO_DATA_FOUND);
	*to = handle((int)(c - s->cards), (int)i);
	LEAVE(OK);
}

int nvmlDeviceGetGpuInstanceId(device_t d, unsigned *id) {
	ENTER("nvmlDeviceGetGpuInstanceId");
	DEVICE(d);
	if (p == &c->self) LEAVE(INVALID);
	*id = (unsigned)p->gi;
	LEAVE(OK);
}

int nvmlDeviceGetSupportedEventTypes(device_t d, ull *types) {
	ENTER("nvmlDeviceGetSupportedEventTypes");
	DEVICE(d);
	*types = 0xf;
	LEAVE(OK);
}

int nvmlDeviceRegisterEvents(device_t d, ull types, void *set) {
	ENTER("nvmlDeviceRegisterEvents");
	DEVICE(d);
	LEAVE(set && types ? OK : INVALID);
}

// A set is how many events it has been told.
int nvmlEventSetCreate(void **set) {
	ENTER("nvmlEventSetCreate");
	*set = calloc(1, sizeof(int));
	LEAVE(OK);
}

int nvmlEventSetFree(void *set) {
	ENTER("nvmlEventSetFree");
	free(set);
	LEAVE(OK);
}

struct event { device_t d; ull type, data; unsigned gi, ci; };

static int wait_event(void *set, struct event *e, unsigned ms) {
	int *told = set;
	for (unsigned waited = 0;; waited += 10) {
		ENTER("nvmlEventSetWait_v2");
		if (*told < s->nxids) {
			e->d = handle(s->xids[*told].card, -1);
			e->type = 8; // a critical XID
			e->data = (ull)s->xids[*told].code;
			e->gi = (unsigned)s->xids[*told].gi;
			e->ci = (unsigned)-1;
			++*told;
			LEAVE(OK);
		}
		if (waited >= ms) LEAVE(TIMEOUT);
		free(s);
		usleep(10000);
	}
}
int nvmlEventSetWait(void *set, void *e, unsigned ms) { return wait_event(set, e, ms); }
int nvmlEventSetWait_v2(void *set, void *e, unsigned ms) { return wait_event(set, e, ms); }
#endif

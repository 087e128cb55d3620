/* A stand-in for libnvidia-ml.so.1 that the real binding loads. It says what the text file named in the environment
 * variable SLACKTIDE_FAKE_NVML says, read anew at each call, so that a test can change it midway:
 *
 *   driver loaded                      (or: missing, which fails every init; without a file, too)
 *   gpu UUID total=N used=N free=N util=N temp=N ecc=N mig=N    one line a card; mig: devices it is cut into
 *   mig GPU total=N used=N free=N      one line a MIG device of card number GPU, in order
 *   process GPU PID BYTES [graphics]   BYTES -1: not available
 *   error CALL GPU CODE                CALL fails for card number GPU (-1: all, and calls without a card)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, INSUFFICIENT = 7, NOT_LOADED = 9, NOT_FOUND = 6 };

typedef struct { int gpu; int mig; } handle_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory2_t;
typedef struct { unsigned gpu, memory; } use_t;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gi, ci; } process_t;

static int initialised;
static handle_t handles[64][9];
static char line[512];

static FILE *script(void) {
    const char *path = getenv("SLACKTIDE_FAKE_NVML");
    return path ? fopen(path, "r") : NULL;
}

static int loaded(void) {
    FILE *file = script();
    int found = 0;
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "driver loaded", 13)) found = 1;
    if (file) fclose(file);
    return found;
}

/* Code with which `call` is to fail for a card. */
static int failure(const char *call, int gpu) {
    FILE *file = script();
    char name[128];
    int which, code, found = OK;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "error %127s %d %d", name, &which, &code) == 3 && !strcmp(name, call) &&
            (which == gpu || which == -1))
            found = code;
    if (file) fclose(file);
    return found;
}

static int begin(const char *call, int gpu) {
    if (!initialised) return UNINITIALIZED;
    if (!loaded()) return NOT_LOADED;
    return failure(call, gpu);
}

/* The line of a card (mig < 0) or of one of its MIG devices; 0 when there is none. */
static int find(int gpu, int mig, char *out) {
    FILE *file = script();
    int count = -1, seen = -1, owner, found = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        if (mig < 0 && !strncmp(line, "gpu ", 4)) found = ++count == gpu;
        if (mig >= 0 && sscanf(line, "mig %d", &owner) == 1 && owner == gpu) found = ++seen == mig;
    }
    if (found) strcpy(out, line);
    if (file) fclose(file);
    return found;
}

static int value(handle_t *of, const char *key, unsigned long long *out) {
    char text[512], wanted[64];
    if (!find(of->gpu, of->mig, text)) return NOT_FOUND;
    snprintf(wanted, sizeof wanted, " %s=", key);
    char *at = strstr(text, wanted);
    if (!at) return 3; /* not supported */
    *out = strtoull(at + strlen(wanted), NULL, 10);
    return OK;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (!loaded()) return NOT_LOADED;
    int code = failure("nvmlInitWithFlags", -1);
    if (code == OK) initialised = 1;
    return code;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    if (!initialised) return UNINITIALIZED;
    initialised = 0;
    return OK;
}

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "fake error %d", code);
    return text;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = begin("nvmlDeviceGetCount", -1);
    char text[512];
    if (code != OK) return code;
    for (*count = 0; find((int)*count, -1, text); ++*count) {}
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle_t **out) {
    int code = begin("nvmlDeviceGetHandleByIndex", (int)index);
    char text[512];
    if (code != OK) return code;
    if (index >= 64 || !find((int)index, -1, text)) return INVALID;
    *out = &handles[index][0];
    (*out)->gpu = (int)index;
    (*out)->mig = -1;
    return OK;
}

int nvmlDeviceGetUUID(handle_t *of, char *out, unsigned size) {
    int code = begin("nvmlDeviceGetUUID", of->gpu);
    char text[512], uuid[96];
    if (code != OK) return code;
    if (!find(of->gpu, -1, text) || sscanf(text, "gpu %95s", uuid) != 1) return NOT_FOUND;
    snprintf(out, size, "%s", uuid);
    return OK;
}

int nvmlDeviceGetName(handle_t *of, char *out, unsigned size) {
    int code = begin("nvmlDeviceGetName", of->gpu);
    if (code == OK) snprintf(out, size, "Fake %d", of->gpu);
    return code;
}

int nvmlDeviceGetMemoryInfo(handle_t *of, memory_t *out) {
    int code = begin("nvmlDeviceGetMemoryInfo", of->gpu);
    if (code == OK) code = value(of, "total", &out->total);
    if (code == OK) code = value(of, "used", &out->used);
    if (code == OK) code = value(of, "free", &out->free);
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(handle_t *of, memory2_t *out) {
    memory_t plain;
    int code = begin("nvmlDeviceGetMemoryInfo_v2", of->gpu);
    if (code == OK) code = nvmlDeviceGetMemoryInfo(of, &plain);
    if (code != OK) return code;
    out->total = plain.total, out->used = plain.used, out->free = plain.free;
    out->reserved = plain.total - plain.used - plain.free;
    return OK;
}

int nvmlDeviceGetUtilizationRates(handle_t *of, use_t *out) {
    unsigned long long found = 0;
    int code = begin("nvmlDeviceGetUtilizationRates", of->gpu);
    if (code == OK) code = value(of, "util", &found);
    out->gpu = (unsigned)found, out->memory = 0;
    return code;
}

int nvmlDeviceGetTemperature(handle_t *of, int sensor, unsigned *out) {
    unsigned long long found = 0;
    int code = begin("nvmlDeviceGetTemperature", of->gpu);
    if (code == OK && sensor != 0) code = INVALID;
    if (code == OK) code = value(of, "temp", &found);
    *out = (unsigned)found;
    return code;
}

int nvmlDeviceGetTotalEccErrors(handle_t *of, int kind, int counter, unsigned long long *out) {
    int code = begin("nvmlDeviceGetTotalEccErrors", of->gpu);
    if (code == OK && (kind != 1 || counter != 0)) code = INVALID;
    return code == OK ? value(of, "ecc", out) : code;
}

int nvmlDeviceGetMigMode(handle_t *of, unsigned *current, unsigned *pending) {
    unsigned long long found = 0;
    int code = begin("nvmlDeviceGetMigMode", of->gpu);
    if (code == OK) code = value(of, "mig", &found);
    *current = *pending = found > 0;
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(handle_t *of, unsigned *out) {
    unsigned long long found = 0;
    int code = begin("nvmlDeviceGetMaxMigDeviceCount", of->gpu);
    if (code == OK) code = value(of, "mig", &found);
    *out = (unsigned)found;
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(handle_t *of, unsigned index, handle_t **out) {
    int code = begin("nvmlDeviceGetMigDeviceHandleByIndex", of->gpu);
    char text[512];
    if (code != OK) return code;
    if (index >= 8 || !find(of->gpu, (int)index, text)) return NOT_FOUND;
    *out = &handles[of->gpu][index + 1];
    (*out)->gpu = of->gpu;
    (*out)->mig = (int)index;
    return OK;
}

static int processes(const char *call, handle_t *of, int graphics, unsigned *count, process_t *out) {
    int code = begin(call, of->gpu), gpu;
    unsigned pid, found = 0, room = *count;
    long long bytes;
    char kind[32];
    if (code != OK) return code;
    FILE *file = script();
    while (file && fgets(line, sizeof line, file)) {
        kind[0] = 0;
        if (sscanf(line, "process %d %u %lld %31s", &gpu, &pid, &bytes, kind) < 3 || gpu != of->gpu) continue;
        if (graphics != !strcmp(kind, "graphics")) continue;
        if (out && found < room)
            out[found] = (process_t){pid, bytes < 0 ? 0xFFFFFFFFFFFFFFFFull : (unsigned long long)bytes, 0, 0};
        ++found;
    }
    if (file) fclose(file);
    *count = found;
    return found > room ? INSUFFICIENT : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(handle_t *of, unsigned *count, process_t *out) {
    return processes("nvmlDeviceGetComputeRunningProcesses", of, 0, count, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(handle_t *of, unsigned *count, process_t *out) {
    return processes("nvmlDeviceGetGraphicsRunningProcesses", of, 1, count, out);
}

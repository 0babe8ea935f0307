/* User-Mode-Linux keeps 4 KiB for the vector registers of a process. On a CPU with AMX the kernel takes and gives
 * 11 KiB in one piece and refuses less, which is a panic of the guest. This library, preloaded, completes the piece:
 * what the guest does not keep stays as it is in the traced process. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define NT_X86_XSTATE 0x202
#define LARGEST 65536

static long call(long request, long pid, void *address, void *data) {
  return syscall(SYS_ptrace, request, pid, address, data);
}

long ptrace(enum __ptrace_request request, ...) {
  va_list arguments;
  va_start(arguments, request);
  long pid = va_arg(arguments, int);
  void *address = va_arg(arguments, void *);
  void *data = va_arg(arguments, void *);
  va_end(arguments);

  if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
    long value; /* the system call stores the value, the function returns it */
    if (call(request, pid, address, &value) < 0) return -1;
    errno = 0;
    return value;
  }
  if ((long)address != NT_X86_XSTATE || (request != PTRACE_GETREGSET && request != PTRACE_SETREGSET))
    return call(request, pid, address, data);

  static __thread char registers[LARGEST] __attribute__((aligned(64)));
  struct iovec *part = data, whole = {registers, sizeof registers};
  if (call(PTRACE_GETREGSET, pid, address, &whole) < 0) return -1;
  size_t size = part->iov_len < whole.iov_len ? part->iov_len : whole.iov_len;
  if (request == PTRACE_GETREGSET) {
    memcpy(part->iov_base, registers, size);
    part->iov_len = size;
    return 0;
  }
  memcpy(registers, part->iov_base, size);
  return call(PTRACE_SETREGSET, pid, address, &whole);
}

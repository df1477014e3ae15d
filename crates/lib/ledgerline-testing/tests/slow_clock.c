/*
 * A clock that runs at a twentieth of its speed from its first use on, for a program that valgrind runs
 * and that is linked with glibc dynamically.
 *
 * valgrind makes a program many times slower: the first TLS handshake takes half a second, and more than
 * a second on a slow machine. A client drops a connection after a second and opens another one, whose
 * instructions would be counted, too. This library slows down the clock that programs measure time with,
 * and not the clock that signs requests. It adds up to half a percent to the instructions of a start,
 * where libfaketime adds three.
 */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
	static long long first;
	int failed = syscall(SYS_clock_gettime, clock, now);

	if (!failed && clock == CLOCK_MONOTONIC) {
		long long ns = now->tv_sec * 1000000000LL + now->tv_nsec;

		/* A deadline that the kernel compares with its own clock must not lie in the past. */
		if (!first)
			first = ns;
		ns = first + (ns - first) / 20;
		now->tv_sec = ns / 1000000000;
		now->tv_nsec = ns % 1000000000;
	}
	return failed;
}

// Preloaded into a process (LD_PRELOAD), has its TCP sockets listen on one address of the machine.
//
// TensorFlow's gRPC server listens on all interfaces, whatever the cluster says, and has no setting
// against that. So a socket that asks for the wildcard address (0.0.0.0, or ::, which takes IPv4,
// too) gets the address in MONOLITH_LISTEN_ADDRESS instead. Sockets that name an address, UDP and
// Unix sockets, and processes without the variable are left alone.
//
// Nothing is opened by mistake: where the variable holds no address, or one that the socket cannot
// have, the call fails. The library needs nothing but libc, since all children of the process get
// it.
//
// It also gives TensorFlow the numbers by which a server tells requests apart. TensorFlow draws
// them in a new thread for each step, from a generator with a seed of 32 bits; a server remembers
// 100,000 of them, so once in about 2^32 / 100,000 = 43,000 steps one comes twice, and the step is
// refused: "The same RunGraph (Worker) request was received twice". With 64 bits that does not
// happen.

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

namespace {

constexpr char kVariable[] = "MONOLITH_LISTEN_ADDRESS";

using Bind = int (*)(int, const sockaddr*, socklen_t);
using Listen = int (*)(int, int);

// What is wrapped; that of another preloaded library, if there is one.
template <typename Function>
Function FindNext(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

const char* GetWanted() {
  const char* wanted = getenv(kVariable);
  return wanted != nullptr && *wanted != '\0' ? wanted : nullptr;
}

// Returns whether an address means all interfaces, and its port.
bool IsWildcard(const sockaddr* address, socklen_t size, in_port_t* port) {
  if (address == nullptr) return false;  // The system says what is wrong with it.
  if (address->sa_family == AF_INET && size >= sizeof(sockaddr_in)) {
    sockaddr_in ipv4;
    memcpy(&ipv4, address, sizeof(ipv4));
    *port = ipv4.sin_port;
    return ipv4.sin_addr.s_addr == htonl(INADDR_ANY);
  }
  if (address->sa_family == AF_INET6 && size >= sizeof(sockaddr_in6)) {
    sockaddr_in6 ipv6;
    memcpy(&ipv6, address, sizeof(ipv6));
    *port = ipv6.sin6_port;
    constexpr unsigned char kMappedWildcard[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return IN6_IS_ADDR_UNSPECIFIED(&ipv6.sin6_addr) ||
           memcmp(&ipv6.sin6_addr, kMappedWildcard, sizeof(kMappedWildcard)) == 0;
  }
  return false;
}

int GetOption(int fd, int level, int name) {
  int value = 0;
  socklen_t size = sizeof(value);
  return getsockopt(fd, level, name, &value, &size) == 0 ? value : -1;
}

int Refuse(const char* wanted, const char* why) {
  fprintf(stderr, "A port was not opened: %s is '%s', %s.\n", kVariable, wanted, why);
  errno = EADDRNOTAVAIL;
  return -1;
}

// Binds a socket of a family to a port of the wanted address.
int BindNarrowed(int fd, int family, in_port_t port, const char* wanted) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST;  // Asks no name server.
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(wanted, nullptr, &hints, &found) != 0) {
    return Refuse(wanted, "which is no IP address");
  }
  union {
    sockaddr any;
    sockaddr_in ipv4;
    sockaddr_in6 ipv6;
  } address = {};
  memcpy(&address, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  in_port_t unused = 0;
  if (IsWildcard(&address.any, sizeof(address), &unused)) {
    return Refuse(wanted, "which is all interfaces");
  }

  if (address.any.sa_family == AF_INET && family == AF_INET6) {
    // A socket for both families takes an IPv4 address in this form, one for IPv6 alone does not.
    const in_addr ipv4 = address.ipv4.sin_addr;
    address.ipv6 = {};
    address.ipv6.sin6_family = AF_INET6;
    address.ipv6.sin6_addr.s6_addr[10] = 0xff;
    address.ipv6.sin6_addr.s6_addr[11] = 0xff;
    memcpy(&address.ipv6.sin6_addr.s6_addr[12], &ipv4, sizeof(ipv4));
    if (GetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY) != 0) {
      return Refuse(wanted, "which a socket for IPv6 alone cannot have");
    }
  }
  if (address.any.sa_family != family) {
    return Refuse(wanted, "which a socket for IPv4 alone cannot have");
  }
  // A call of the library itself would be taken for its caller's and come back here.
  const Bind next = FindNext<Bind>("bind");
  if (family == AF_INET) {
    address.ipv4.sin_port = port;
    return next(fd, &address.any, sizeof(address.ipv4));
  }
  address.ipv6.sin6_port = port;
  return next(fd, &address.any, sizeof(address.ipv6));
}

}  // namespace

extern "C" {

int bind(int fd, const sockaddr* address, socklen_t size) noexcept {
  const char* wanted = GetWanted();
  in_port_t port = 0;
  if (wanted == nullptr || !IsWildcard(address, size, &port) ||
      GetOption(fd, SOL_SOCKET, SO_TYPE) != SOCK_STREAM) {
    return FindNext<Bind>("bind")(fd, address, size);
  }
  return BindNarrowed(fd, address->sa_family, port, wanted);
}

// A socket that was never bound would listen on a free port of all interfaces.
int listen(int fd, int backlog) noexcept {
  const char* wanted = GetWanted();
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  in_port_t port = 0;
  if (wanted != nullptr && GetOption(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
      IsWildcard(reinterpret_cast<const sockaddr*>(&own), size, &port) && port == 0) {
    if (BindNarrowed(fd, own.ss_family, port, wanted) != 0) return -1;
  }
  return FindNext<Listen>("listen")(fd, backlog);
}

// For whoever asks whether the library is there (monolith.cluster.narrow).
const char* monolith_get_listen_address() noexcept { return GetWanted(); }

}  // extern "C"

namespace tsl {
namespace random {

// In place of TensorFlow's function of this name.
uint64_t ThreadLocalNew64() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof(number), 0) == sizeof(number)) return number;
  using New64 = uint64_t (*)();
  return FindNext<New64>("_ZN3tsl6random16ThreadLocalNew64Ev")();  // A kernel without that call.
}

}  // namespace random
}  // namespace tsl
